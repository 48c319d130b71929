"""Secrets in text that jobs print: keys, tokens, passwords. Names and what is needed for a diagnosis stay.

Known by their own form (an AWS key, a JSON web token, a private key) or by the name in front of them (``password=``,
``HF_TOKEN=``, ``Authorization:``). A secret that has neither is not found: this makes a leak less likely, no more.
All patterns take linear time: what repeats without a bound is followed by nothing that it could match itself, and
begins where its own characters do not stand before it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Match, Pattern

from nccl_slurm.model import Fact, Rank

__all__ = ["HIDDEN", "redacted", "redacted_fact", "redacted_rank"]

HIDDEN = "[redacted]"

#: Lower-case literals, one of which every secret below contains (but lines of a private key): most texts end here.
_SIGNS = (
    "pass",
    "pwd",
    "secret",
    "token",
    "key",
    "authorization",
    "bearer",
    "credential",
    "cookie",
    "auth",
    "sig",
    "mysql",
    "mariadb",
    "-u",
    "://",
    "akia",
    "asia",
    "abia",
    "acca",
    "eyj",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat",
    "glpat-",
    "gldt-",
    "glrt-",
    "glptt-",
    "glagent-",
    "xox",
    "xapp-",
    "hooks.slack",
    "webhook",
    "_pw",
    "hf_",
    "api_org_",
    "wandb_v",
    "wandb login",
    "local-",
    "sk-",
    "sk_",
    "rk_",
    "sess-",
    "aiza",
    "ya29.",
    "gocspx-",
    "1//0",  # _REFRESH
    "nvapi-",
    "npm_",
    "pypi-",
    "munge:",
    "dapi",
    "gsk_",
    "xai-",
    "r8_",
    "pplx-",
    "hvs.",
    "hvb.",
    "dop_v1_",
    "dckr_",
    "sg.",
)
#: By a character that they hold, since many texts have none of it.
_MARKS = ("_", "-", ".", "/", ":", "")
_BY_MARK = tuple(
    (mark, tuple(sign for sign in _SIGNS if next(one for one in _MARKS if one in sign) == mark)) for mark in _MARKS
)
#: Of what nothing but slashes is left without its digits, as it is left of paths: asked of the text itself.
_REFRESH = "1//0"
_SIGNS_OF_SHAPES = tuple({one.translate(str.maketrans("", "", "0123456789")) for one in _SIGNS if one != _REFRESH})
#: Texts without their digits that hold none of these, and the length of their longest word: 2 MB.
_CLEAN: dict[bytes, int] = {}
_CLEAN_MOST, _CLEAN_LONGEST = 4096, 512
_NOT_YET = r"(?![bu]?\\{0,3}[\"']?\[redacted)"
#: What may stand between a name and its value: also the ``"] =`` of ``os.environ["HF_TOKEN"] =``.
_SEPARATOR = r"\\{0,3}[\"']?\]?[ \t]*(?:=>|[=:])[ \t]*" + _NOT_YET
#: To the end of the quote, or of the word: passwords hold commas and brackets. The quote is kept; in JSON inside of
#: JSON it has a backslash before it, in all else a backslash takes the next character along.
_VALUE = (
    r"(?:([bu]?\")(?:\\.|[^\"\\\n])+|([bu]?')(?:\\.|[^'\\\n])+"
    r"|([bu]?\\{1,3}\")[^\"\n]+|([bu]?\\{1,3}')[^'\n]+|[^\s\"']"
)
#: Keys that are secrets; those of caches and stores are none.
_KEY = (
    r"(?:api|access|private|signing|encryption|account|storage|subscription|license|service|client|auth|deploy|webhook"
    r"|wandb|comet|neptune|mlflow|kaggle|clearml|openai|anthropic|hf|huggingface|azure|aws|github|gitlab|slack)[_.-]?key"
)
#: Any value is one after these names; after *token* and *key* alone short ones and words of tokenizers are none.
_SURE = (
    r"(?:passw(?:or)?d|passphrase|secret)[\w.-]{0,40}|(?:proxy-)?authorization"
    rf"|{_KEY}(?:[_.-]?id)?"
    r"|(?:db|sql|pg|postgres|mongo|redis|amqp|ldap|smtp|mail|ftp|ssh|http|proxy|user|admin|root)[_.-]?(?:pass|pwd)"
    r"|(?:storage|jobcomp|slurmdbd)pass"  # slurm.conf's and slurmdbd.conf's
    r"|x-(?:amz|goog)-(?:signature|credential)|credentials?(?=\\{0,3}[\"']|[ \t]*=)"
)
_NAMED = rf"passw(?:or)?d|passphrase|secret(?:[_.-]key)?|{_KEY}"
_SCHEMES = "bearer|basic|token|digest"
#: A word of nothing but base64, as long as lines of a private key's block are, and no number in hexadecimal. Sentences
#: that quote one end in a full stop.
_KEY_LINE = re.compile(
    r"(?<!\S)(?=[A-Za-z0-9+/]*[A-Z])(?=[A-Za-z0-9+/]*[a-z])(?=[A-Za-z0-9+/]*[0-9])[A-Za-z0-9+/]{60,}={0,2}(?=\.*(?!\S))"
)
_KEY_LINE_LEAST = 60
#: Prefix of the issuer, then what the issuer's own documents say follows it.
_ISSUED = (
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",  # GitHub
    r"gl(?:pat|dt|rt|ptt|agent)-[\w.-]{16,}",  # GitLab
    r"xox[abeoprs](?:\.xox[bp])?-[\w-]{10,}|xapp-\d-[\w-]{10,}",  # Slack
    r"hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}",  # Hugging Face
    r"wandb_v\d{1,2}_\w{20,}|local-[0-9a-f]{40}(?!\w)",  # Weights & Biases: cloud, own server
    r"sk-(?:proj|ant|svcacct|admin|or|lf)-[\w-]{20,}|sk-[A-Za-z0-9]{20,}|sess-[A-Za-z0-9]{30,}",  # OpenAI, Anthropic
    r"AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}",  # Google
    r"nvapi-[\w-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dckr_(?:pat|oat)_[\w-]{20,}",  # NVIDIA, package registries
    r"dapi[0-9a-f]{32}(?!\w)|gsk_[A-Za-z0-9]{30,}|xai-[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{30,}|pplx-[A-Za-z0-9]{30,}",
    r"hv[sb]\.[\w-]{20,}|dop_v1_[0-9a-f]{40,}|SG\.[\w-]{16,}\.[\w-]{16,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",
)


@lru_cache(maxsize=None)
def _secrets() -> tuple[Pattern[str], ...]:
    """Groups stay, all else of a match goes. Forms first, then values by the name in front of them. Compiled for the
    first text that may hold one: 10 ms, and a node's worker seldom reads such a text."""
    return (
        re.compile(
            r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?!\[redacted).*?(?:(?=-----END )|\Z)", re.DOTALL
        ),
        re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
        re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
        re.compile(rf"(?<![A-Za-z0-9_-])(?:{'|'.join(_ISSUED)})"),
        re.compile(r"(?<![\w/-])1//0[\w-]{30,}"),  # Google's refresh tokens
        re.compile(r"(?<![A-Za-z0-9])MUNGE:[A-Za-z0-9+/=]{20,}:?"),  # munge(7): by what Slurm's daemons prove who calls
        re.compile(
            rf"((?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{{0,30}}://[^\s/@:]{{0,200}}:){_NOT_YET}[^\s/]{{1,300}}(?=@)"
        ),
        # a slash belongs escaped there; what begins with a digit is a port and a path
        re.compile(
            rf"((?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{{0,30}}://[^\s/@:\[]{{0,200}}:){_NOT_YET}"
            rf"(?![\d/])[^\s\"'<>]{{1,300}}(?=@)"
        ),
        re.compile(r"((?<![A-Za-z0-9+.-])https?://)[\w.~+=%-]{16,300}(?=@)", re.I),
        re.compile(r"(https://hooks\.slack\.com/(?:services|workflows)/)[\w/]{8,}"),
        re.compile(r"(https://[\w.-]{0,60}discord(?:app)?\.com/api/webhooks/\d{1,30}/)[\w-]{20,}"),
        re.compile(rf"(https://[\w-]{{1,60}}\.webhook\.office\.com/){_NOT_YET}[^\s\"'<>]{{20,}}"),
        re.compile(rf"(authorization{_SEPARATOR}\\{{0,3}}[\"']?(?:{_SCHEMES}) ){_NOT_YET}[^\s\"']+", re.I),
        re.compile(rf"(\bbearer ){_NOT_YET}[\w.~+/=-]{{16,}}", re.I),
        re.compile(rf"((?<!\w)(?:set-)?cookie{_SEPARATOR}\\{{0,3}}[\"']?){_NOT_YET}[^\s\"'][^\n\"']*", re.I),
        re.compile(rf"((?:{_SURE}){_SEPARATOR}(?!\\{{0,3}}[\"']?(?:{_SCHEMES}) )){_VALUE}+)", re.I),
        re.compile(rf"([A-Z0-9]_(?:PASS|PWD|PW){_SEPARATOR}){_VALUE}+)"),
        re.compile(
            rf"((?<!\\)[\"'](?:pass|pwd?|passcode)\\{{0,3}}[\"'][ \t]*(?:=>|[=:])[ \t]*{_NOT_YET}"
            rf"(?=\\{{0,3}}[\"'])){_VALUE}+)",
            re.I,
        ),
        # lists of arguments and pairs, as Python prints them: '--api-key', 'x'
        re.compile(
            rf"([\"'](?:--?)?[\w.-]{{0,40}}?(?:{_NAMED})\\{{0,3}}[\"'],[ \t]?\\{{0,3}}){_NOT_YET}"
            r"(?:'[^'\n]+'|\"[^\"\n]+\")",
            re.I,
        ),
        re.compile(
            rf"([\"'](?:--?)?[\w.-]{{0,40}}?token\\{{0,3}}[\"'],[ \t]?\\{{0,3}}[\"']){_NOT_YET}"
            r"(?=[\w.~+/=-]{0,200}[A-Za-z])(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{8,}",
            re.I,
        ),
        re.compile(rf"(<(?:[\w-]{{1,40}}:)?[\w.-]{{0,40}}?(?:{_NAMED})>){_NOT_YET}[^<\n]{{1,300}}(?=</)", re.I),
        re.compile(rf"(\bname=[\"'][\w.-]{{0,40}}?(?:{_NAMED})[\"'][ \t]{{1,9}}value=){_NOT_YET}{_VALUE}+)", re.I),
        # in sentences: quoted, or a word with a digit in it
        re.compile(
            rf"(\b(?:passw(?:or)?d|passphrase|secret)[ \t]{{1,9}}(?:is[ \t]{{1,9}}|was[ \t]{{1,9}})?)"
            rf"{_NOT_YET}(?:'[^'\n]+'|\"[^\"\n]+\")",
            re.I,
        ),
        re.compile(
            rf"(\b(?:passw(?:or)?d|passphrase|secret|token)[ \t]{{1,9}}(?:is|was)[ \t]{{1,9}}){_NOT_YET}"
            r"(?=[\w.~+/=-]{0,200}[A-Za-z])(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{8,}",
            re.I,
        ),
        re.compile(
            rf"(\b(?:secret|access|api|private)[ _-](?:access[ _-])?key[ \t]{{1,9}}){_NOT_YET}"
            r"(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{16,}",
            re.I,
        ),
        re.compile(r"([?&](?:sig|signature)=)[\w%.~+/=-]{4,}", re.I),
        re.compile(r"(\bsignature=)(?:[0-9a-f]{40,}|[A-Za-z0-9+/]{26,}={1,2})", re.I),
        # in capitals alone: keys of caches and stores are hashes, and no secrets
        re.compile(rf"([A-Z0-9]_KEY{_SEPARATOR}[\"']?)(?=[A-Za-z_+/-]{{0,60}}\d)[\w.~+/=-]{{16,}}"),
        # a count of tokens is no token, nor is a value that is a number
        re.compile(rf"(token{_SEPARATOR}[bu]?\\{{0,3}}[\"']?)(?!\d{{1,15}}(?![\w~+/=-]))[\w%.~+/=-]{{8,}}", re.I),
        re.compile(
            rf"((?<![\w-])_?auth\\{{0,3}}[\"']?[ \t]*[=:][ \t]*\\{{0,3}}[\"']){_NOT_YET}"
            rf"[A-Za-z0-9+/=]{{8,}}(?=\\{{0,3}}[\"'])"
        ),
        re.compile(rf"(;[ \t]*pwd=){_NOT_YET}(?!/)[^\s;\"']+", re.I),
        # netrc(5)
        re.compile(rf"(\blogin[ \t]+\S{{1,100}}[ \t]+password[ \t]+){_NOT_YET}\S+"),
        re.compile(rf"(\bwandb login[ \t]+(?:--[\w-]+[ \t]+){{0,4}}){_NOT_YET}[\w-]{{20,}}"),
        re.compile(
            rf"((?<![\w-])--[\w-]{{0,30}}?(?:passw(?:or)?d|secret|token|{_KEY}) ){_NOT_YET}{_VALUE}{{4,}})", re.I
        ),
        re.compile(
            rf"((?<![\w-])(?:-u|--(?:proxy-)?user)[ =]?[\"']?[^\s:\"'-][^\s:\"']{{0,100}}:)(?!\d+\b)"
            rf"{_NOT_YET}{_VALUE}+)"
        ),
        re.compile(rf"((?<![\w-])sshpass -p ?){_NOT_YET}{_VALUE}+)"),
    )


#: One password a match, the first that is not hidden yet.
_MYSQL = re.compile(rf"((?<![\w-])(?:mysql|mariadb)[\w-]{{0,20}} (?:[^\n|;]{{0,200}}? )?-p){_NOT_YET}{_VALUE}+)")
#: In 200 characters no more fit.
_MYSQL_ROUNDS = 64
#: A name that a first match took along may have a value of its own behind it.
_ROUNDS = 4


def redacted(text: str) -> str:
    """``text`` with `HIDDEN` in the place of each secret; the same where it is applied again."""
    if _is_clean(text):
        return text
    text = _KEY_LINE.sub(HIDDEN, text)
    for _ in range(_ROUNDS):
        before = text
        for secret in _secrets():
            text = secret.sub(_hidden, text)
        text = _without_passwords_of_mysql(text)
        if text == before:
            break
    return text


def _without_passwords_of_mysql(text: str) -> str:
    for _ in range(_MYSQL_ROUNDS):
        text, count = _MYSQL.subn(_hidden, text)
        if not count:
            break
    return text


def redacted_fact(fact: Fact) -> Fact:
    """Names of files stay: they are what a reader opens."""
    clean = _is_clean(fact.text)
    data: dict[str, str] = {}
    for key, value in fact.data.items():
        if not isinstance(value, str) or (clean and len(value) < _KEY_LINE_LEAST and value in fact.text):
            continue  # most values are words of the text
        shown = redacted(value)
        if shown != value:
            data[key] = shown
    if clean and not data:
        return fact
    return replace(fact, text=redacted(fact.text), data={**fact.data, **data})


def _is_clean(text: str) -> bool:
    """Whether neither ``text`` nor a part of it below `_KEY_LINE_LEAST` characters can hold a secret.

    Ranks print the same again but for its digits, so what is clean in any case is remembered without them.
    """
    raw = text.encode("utf-8", "replace")
    shape = raw.translate(None, b"0123456789")
    longest = _CLEAN.get(shape)
    if longest is None or (b"//" in shape and _REFRESH in text):
        if _has_sign(text.lower()):
            return False
        _remember(shape)
    elif longest + len(raw) - len(shape) < _KEY_LINE_LEAST:  # were all digits in one word
        return True
    long = len(text) >= _KEY_LINE_LEAST and len(max(text.split(), key=len, default="")) >= _KEY_LINE_LEAST
    return not long or _KEY_LINE.search(text) is None


def _has_sign(lower: str) -> bool:
    for mark, signs in _BY_MARK:  # loops: half the time of any() over a generator, and this is asked of many facts
        if mark in lower:
            for sign in signs:
                if sign in lower:
                    return True
    return False


def _remember(shape: bytes) -> None:
    if len(_CLEAN) < _CLEAN_MOST and len(shape) <= _CLEAN_LONGEST:
        lower = shape.decode().lower()
        if not any(sign in lower for sign in _SIGNS_OF_SHAPES):
            _CLEAN[shape] = max(map(len, shape.split()), default=0)


def redacted_rank(rank: Rank) -> Rank:
    return rank if rank.last_line is None else replace(rank, last_line=redacted(rank.last_line))


def _hidden(match: Match[str]) -> str:
    return "".join(kept or "" for kept in match.groups()) + HIDDEN
