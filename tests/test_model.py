import pytest
from pydantic import ValidationError

from inventory.model import Deployment, Draft, ModelRef

TARGET = ModelRef(repo="org/model")


def test_exactly_one_source() -> None:
    with pytest.raises(ValidationError, match="exactly one of repo, path, url"):
        ModelRef(repo="a/b", path="/c")


def test_open_port_needs_a_key() -> None:
    with pytest.raises(ValidationError, match="api_key"):
        Deployment(name="x", engine="vllm", target=TARGET, host="0.0.0.0")


def test_secret_is_a_reference() -> None:
    with pytest.raises(ValidationError, match="reference"):
        Deployment(name="x", engine="vllm", target=TARGET, api_key="sk-123")


def test_method_and_model_belong_together() -> None:
    with pytest.raises(ValidationError, match="needs a model"):
        Draft(method="eagle3")
    with pytest.raises(ValidationError, match="takes no model"):
        Draft(method="ngram", model=TARGET)
