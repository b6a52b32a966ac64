"""Why a model's metadata could not be had. "Is not there" and "could not look" are different classes."""

from inventory.errors import CheckRefused, EyasError, UsageError

__all__ = [
    "HubDenied",
    "HubUnreachable",
    "NotAModel",
    "RateLimited",
    "RepoMissing",
    "RevisionMissing",
    "WeightsBroken",
]


class NotAModel(UsageError):
    """The folder, repository or mirror was read and is not a model (no usable config.json)."""


class WeightsBroken(CheckRefused):
    """A weight file is truncated, an LFS pointer, or not what its name says; ``slug`` names the cause."""

    def __init__(self, message: str, *, slug: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.slug = slug


class RepoMissing(CheckRefused):
    """The hub answered that there is no such repository (or none that this token may see)."""

    def __init__(self, repo: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.repo = repo


class RevisionMissing(CheckRefused):
    """The repository exists, the branch, tag or commit does not."""


class HubUnreachable(EyasError):
    """Nobody answered, or what answered is not a hub: nothing is known about the model."""

    exit_code = 3


class RateLimited(HubUnreachable):
    """The hub refuses further requests for now. ``retry_after`` is in seconds, None when it didn't say."""

    slug = "hf-rate-limited"

    def __init__(self, message: str, *, retry_after: int | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class HubDenied(EyasError):
    """The hub knows the model and refuses this caller: no token, a bad one, or a licence not accepted."""

    exit_code = 3

    def __init__(self, message: str, *, slug: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.slug = slug
