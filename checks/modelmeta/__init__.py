"""What a model is, from its configuration, tokenizer files and tensor headers alone: never its weights.

One call, `load_model_meta`, for a local folder, a hub repository or a plain HTTP mirror. The planner, the
pair gate and the disk check read the same frozen `ModelMeta`.
"""

from checks.modelmeta.errors import (
    HubDenied,
    HubUnreachable,
    NotAModel,
    RateLimited,
    RepoMissing,
    RevisionMissing,
    WeightsBroken,
)
from checks.modelmeta.hub import hub_token
from checks.modelmeta.load import load_model_meta
from checks.modelmeta.meta import FileInfo, ModelMeta, TensorInfo, TokenizerInfo
from checks.modelmeta.ref import model_ref

__all__ = [
    "FileInfo",
    "HubDenied",
    "HubUnreachable",
    "ModelMeta",
    "NotAModel",
    "RateLimited",
    "RepoMissing",
    "RevisionMissing",
    "TensorInfo",
    "TokenizerInfo",
    "WeightsBroken",
    "hub_token",
    "load_model_meta",
    "model_ref",
]
