"""AWS by boto3: each call bounded in time and tries, each failure a `NotObserved` that names what is missing.

boto3 is imported at the first call: the extra ``[aws]`` may be absent, and its import takes 0.2 s. Throttled calls are
tried again by botocore's *standard* mode (Config, ``retries``), which waits at most 20 s between two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nccl_slurm.doctor.check import NotObserved

__all__ = ["POLICY", "Client", "Limits", "Pages", "Refused", "action_of"]

#: Where the permissions are that a denied call lacks.
POLICY = "etc/hyperpod/doctor-policy.json"

_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationErrorException"})
_REFUSED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
        "AuthFailure",
        "InvalidSignatureException",
        "IncompleteSignature",
        "MissingAuthenticationToken",
    }
)
_THROTTLED = frozenset(
    {"Throttling", "ThrottlingException", "ThrottledException", "RequestLimitExceeded", "TooManyRequestsException"}
)
_MESSAGE_MAX = 200


class Refused(NotObserved):
    """The service answered, and said no. ``code``: its word, as ``ValidationException``."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True)
class Limits:
    """``tries`` of one call, the first among them. ``pages`` of one list. ``all_s``: after so long, counted from the
    first call, no other one is begun."""

    connect_s: float = 3.0
    read_s: float = 15.0
    tries: int = 4
    pages: int = 1000
    all_s: float = 75.0


@dataclass(frozen=True)
class Pages:
    """``cut``: why there may be more than these; empty: these are all."""

    items: Sequence[Mapping[str, Any]]
    cut: str = ""


@dataclass
class Client:
    """``region`` None: boto3 finds it (profile), or the call says that it is missing.

    ``clock`` is monotonic. Not safe for several threads.
    """

    region: str | None = None
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.monotonic
    _session: Any = None
    _until: float | None = None
    _clients: dict[str, Any] = field(default_factory=dict)
    _away: dict[str, str] = field(default_factory=dict)

    def ask(self, service: str, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """One call, as ``("sagemaker", "describe_cluster", ClusterName="c")``. Raises NotObserved, Refused."""
        if service in self._away:
            raise NotObserved(self._away[service])
        if self._until is None:
            self._until = self.clock() + self.limits.all_s
        if self.clock() > self._until:
            raise NotObserved(f"{service} was not asked: AWS took more than {self.limits.all_s:g} s until here")
        client = self._client(service)
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            reply: Any = getattr(client, operation)(**parameters)
        except ClientError as error:
            raise _refused(error.response, action_of(client, operation), self.limits.tries) from None
        except BotoCoreError as error:
            raise NotObserved(self._transport(service, error)) from None
        except Exception as error:  # botocore's parsers raise what they like at an answer that is none of AWS's
            action = action_of(client, operation)
            raise NotObserved(f"{action}: the answer can't be read: {_untold(error)}") from None
        if not isinstance(reply, Mapping):
            raise NotObserved(f"{action_of(client, operation)}: the answer is none")
        found: Mapping[str, Any] = reply
        return found

    def pages(self, service: str, operation: str, items: str, *, enough: int | None = None, **parameters: Any) -> Pages:
        """All pages of a list whose token is ``NextToken`` (CloudWatch Logs: ``nextToken``): any text is one.

        ``enough`` items end it, where the caller wants no more.

        What fails behind the first page, comes round again or takes too long cuts the list. Raises as `ask`.
        """
        name = "nextToken" if service == "logs" else "NextToken"
        found: list[Mapping[str, Any]] = []
        seen: set[str] = set()
        for _ in range(self.limits.pages):
            try:
                reply = self.ask(service, operation, **parameters)
            except NotObserved as error:
                if not seen:
                    raise
                return Pages(found, f"cut after {len(found)}: {error}")
            found += [one for one in reply.get(items) or () if isinstance(one, Mapping)]
            token = reply.get(name)
            if not token or (enough is not None and len(found) >= enough):
                return Pages(found)
            if token in seen:
                return Pages(found, f"cut after {len(found)}: {service} gave one page twice")
            seen.add(token)
            parameters[name] = token
        return Pages(found, f"cut after {len(found)}: more than {self.limits.pages} pages")

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._made(service)
        return self._clients[service]

    def _made(self, service: str) -> Any:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise NotObserved("boto3 is not installed here: pip install 'nccl-slurm[aws]'") from None
        config = Config(
            connect_timeout=self.limits.connect_s,
            read_timeout=self.limits.read_s,
            retries={"total_max_attempts": self.limits.tries, "mode": "standard"},
        )
        try:
            if self._session is None:  # one: finding credentials may take seconds
                self._session = boto3.session.Session(region_name=self.region)
            return self._session.client(service, config=config)
        except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
            raise NotObserved(_untold(error)) from None

    def _transport(self, service: str, error: Exception) -> str:
        """Who does not answer once is not asked again: on a host without a way out each try costs seconds."""
        why = _untold(error)
        if type(error).__name__ in _UNREACHABLE:
            why = f"{service} does not answer: {_first_line(error)}; is there a way out, or a VPC endpoint?"
            self._away[service] = why
        return why


_UNREACHABLE = frozenset(
    {"EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ProxyConnectionError", "SSLError"}
)
_REMEDY = {
    "NoCredentialsError": "no AWS credentials here: give this host an instance profile, or set AWS_PROFILE",
    "PartialCredentialsError": "the AWS credentials here are not whole: see ~/.aws/credentials and AWS_*",
    "NoRegionError": "no region is known: give --region, AWS_REGION, or site.region in nccl-slurm.toml",
    "ProfileNotFound": "AWS_PROFILE names no profile here",
}


def action_of(client: Any, operation: str) -> str:
    """IAM's name of a call: ``sagemaker:ListClusterNodes``."""
    model = client.meta.service_model
    return f"{model.signing_name}:{client.meta.method_to_api_mapping[operation]}"


def _refused(response: Mapping[str, Any], action: str, tries: int) -> Refused:
    told = response.get("Error") or {}
    code, message = str(told.get("Code") or "?"), _cut(str(told.get("Message") or ""))
    if code in _DENIED:
        return Refused(code, f"{action} is denied: these credentials lack that permission ({POLICY})")
    if code in _REFUSED:
        return Refused(code, f"{action}: AWS refuses these credentials ({code}): renew them")
    if code in _THROTTLED:
        return Refused(code, f"{action} was throttled {tries} times ({code}): try again later")
    return Refused(code, f"{action}: {code}: {message}".rstrip(": "))


def _untold(error: Exception) -> str:
    name = type(error).__name__
    return _REMEDY.get(name) or f"{name}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return _cut(next(iter(str(error).splitlines()), ""))


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_MAX else text[: _MESSAGE_MAX - 3] + "..."
