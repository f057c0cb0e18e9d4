"""Mask secrets in commands and output before they are kept: `--api-key=***`.

Two things make a text a secret. Its *shape*: what services hand out begins with a mark of theirs (`hf_`, `ghp_`), and a
URL has its password in front of the host. Or its *name*: `--api-key`, `DB_PASSWORD=`. Names of trainings are full of
the same words (`--max-tokens`, `--pad-token`, `--num-key-value-heads`), so it is the parts of a name that tell: its
last one, and what stands before it. A name that only may be one (`--key`, `--use-auth-token`) hides a value that looks
random.

Too much is masked rather than too little where the two are at odds. It is no proof: a password under a name of your own
stays, for which there is `--redact`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache

MASK = "***"
"""Stands where a secret was."""

_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:
    hf_[A-Za-z0-9]{30,} | api_org_[A-Za-z0-9]{30,}                            # Hugging Face
    | sk-(?:[A-Za-z0-9]{20,} | (?=[\w-]*[A-Z])(?=[\w-]*\d)[\w-]{20,})         # OpenAI, Anthropic and others
    | gh[pousr]_[A-Za-z0-9]{30,} | github_pat_\w{22,} | gl[a-z]{2,5}-[\w-]{20,}   # GitHub, GitLab
    | (?:AKIA|ASIA)[0-9A-Z]{16} | AIza[\w-]{35} | ya29\.[\w-]{20,}            # AWS, Google
    | xox[abeprs]-[\w-]{10,} | xapp-[\w-]{10,}                                # Slack
    | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}                             # Stripe
    | SG\.[\w-]{16,}\.[\w-]{16,} | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{50,} | dckr_pat_[\w-]{20,}
    | r8_[A-Za-z0-9]{30,} | gsk_[A-Za-z0-9]{30,} | nvapi-[\w-]{30,} | wandb_v\d_\w{20,} | dapi[0-9a-f]{32}
    | eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?                                    # JSON web tokens
    )(?![A-Za-z0-9])""",
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)
_WEB_HOOK = re.compile(r"(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)[\w/-]+")
_AUTHORIZATION = re.compile(
    r"""(\bauthorization["']?\s*[:=]\s*["']?(?:\w+\s+)?|\bbearer\s+)[\w.~+/=-]{8,}""", re.IGNORECASE
)
_URL = re.compile(
    r"""(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)        # postgresql://
    (?: ([^\s:/?\#@"']*) : (?!\d{1,5}(?:/|$)) [^\s"']{0,300} | [^\s:/?\#@"']+ )@""",
    re.VERBOSE,
)
_QUERY = re.compile(r"([?&](?:sig|signature|x-amz-signature|x-amz-credential)=)[^\s&#\"']+", re.I)
_ASSIGNED = re.compile(
    r"""(?<![\w-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,80})   # --api-key, DB_PASSWORD, wandb.api_key
    (?P<between>["']?\s*(?:=|:(?!//))\s*)
    (?P<value>"[^"]*" | '[^']*' | [^\s"'&;,)}\]]+)""",
    re.VERBOSE,
)
_FLAGGED = re.compile(r"(?<![\w-])(?P<name>--[A-Za-z][\w.-]*)(?P<between>\s+)(?P<value>[^\s-]\S*)")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class _Name(IntEnum):
    """What a name says of its value."""

    PLAIN = 0
    MAY_BE_SECRET = 1
    SECRET = 2


_WORDS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "creds",
    "pwd",
)
_ENDINGS = ("password", "passwd", "passphrase", "secret", "apikey", "apitoken", "authtoken", "accesstoken",
            "accesskey", "secretkey", "privatekey", "credentials")  # fmt: skip
_AUTHORIZING = frozenset({"auth", "authorization", "dsn"})
_ABOUT = frozenset(
    {
        "count", "dir", "dim", "directory", "enabled", "env", "field", "file", "filename", "folder", "format", "len",
        "length", "manager", "name", "num", "path", "policy", "prompt", "size", "stdin", "type", "url",
    }
)  # fmt: skip
"""Behind a word for a secret they are about it: `--password-file`, `--token-type`."""

_BEFORE_KEY = frozenset(
    {
        "access", "account", "admin", "api", "app", "application", "auth", "aws", "azure", "client", "comet",
        "encryption", "gcp", "hf", "license", "master", "neptune", "openai", "private", "secret", "service", "session",
        "shared", "signing", "ssh", "storage", "subscription", "wandb",
    }
)  # fmt: skip
_OF_TEXT = frozenset(
    {
        "added", "audio", "bos", "boundary", "cls", "class", "context", "decoder", "encoder", "end", "eod", "eos",
        "extra", "first", "forced", "image", "in", "input", "last", "mask", "max", "min", "n", "new", "next", "num",
        "out", "output", "pad", "padding", "per", "placeholder", "prefix", "previous", "prompt", "register", "replace",
        "sep", "separator", "special", "start", "stop", "suffix", "text", "think", "trigger", "unk", "unknown", "video",
        "vision", "visual", "word",
    }
)  # fmt: skip
"""In front of `token` they say that it is one of a text."""

_ASKS = frozenset(
    {"ask", "has", "no", "need", "require", "requires", "save", "show", "use", "with"}
)
_BEFORE_PASS = frozenset(
    {"admin", "db", "ftp", "login", "mail", "mysql", "pg", "proxy", "redis", "root", "smtp", "user"}
)
_NO_SECRET = re.compile(r"|true|false|yes|no|on|off|none|null|auto|\*+", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?[\d.]+(?:e[+-]?\d+)?", re.IGNORECASE)
_LOOKS_RANDOM = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w+/=.~-]{16,}")
_SHORTEST = 5


@lru_cache(1024)
def masked(text: str) -> str:
    """Return a text with its secrets masked, found by their shape or by the name before them.

    >>> masked("postgresql://me:hunter2@host/db")
    'postgresql://me:***@host/db'
    """
    if len(text) < _SHORTEST:
        return text
    text = _PRIVATE_KEY.sub(rf"\1{MASK}\2", _WEB_HOOK.sub(rf"\1{MASK}", text))
    text = _QUERY.sub(rf"\1{MASK}", _URL.sub(_without_password, text))
    text = _AUTHORIZATION.sub(rf"\1{MASK}", _SHAPES.sub(MASK, text))
    return _FLAGGED.sub(_without_value, _ASSIGNED.sub(_without_value, text))


def masked_setting(name: str, text: str) -> str:
    """The text that is the value of a setting of this name, masked where it is a secret.

    >>> masked_setting("api_key", "abc"), masked_setting("reduction", "mean")
    ('***', 'mean')
    """
    return MASK if _is_secret(name, text) else masked(text)


def masked_command(words: Sequence[str]) -> list[str]:
    """The words of a command as they may be kept.

    >>> masked_command(["python", "train.py", "--api-key", "abc", "--max-tokens=512"])
    ['python', 'train.py', '--api-key', '***', '--max-tokens=512']
    """
    return list(_masked_words(words))


def _masked_words(words: Sequence[str]) -> Iterator[str]:
    flag = ""
    for word in words:
        is_flag = word.startswith("--") or _FLAG.fullmatch(word) is not None
        if flag and not is_flag and _is_secret(flag, word):
            yield MASK
        else:
            yield masked(word)
        flag = word if is_flag and "=" not in word else ""


def _without_password(found: re.Match[str]) -> str:
    scheme, user = found[1], found[2]
    if user is not None:
        return f"{scheme}{user}:{MASK}@"
    return f"{scheme}{MASK}@" if scheme.lower().startswith("http") else found[0]


def _without_value(found: re.Match[str]) -> str:
    name, between, value = found["name"], found["between"], found["value"]
    quote = value[0] if value[0] in "\"'" else ""
    bare = value.strip(quote) if quote else value
    if not _is_secret(name, bare) or _is_code(bare, between):
        return found[0]
    return f"{name}{between}{quote}{MASK}{quote}"


def _is_code(value: str, between: str) -> bool:
    """Whether a value is a piece of a program: `token = os.environ[...]`, `password=$1`."""
    return value.startswith(("$", "os.")) or (" " in between and "(" in value)


def _is_secret(name: str, value: str) -> bool:
    if _NO_SECRET.fullmatch(value):
        return False
    said = _said_by(name)
    if said is _Name.MAY_BE_SECRET:
        return _LOOKS_RANDOM.fullmatch(value) is not None
    return said is _Name.SECRET


def _said_by(name: str) -> _Name:
    parts = [part.lower() for part in _PARTS.findall(name)]
    if not parts:
        return _Name.PLAIN
    *before, last = parts
    said = _said_by_last(before, last)
    return min(said, _Name.MAY_BE_SECRET) if parts[0] in _ASKS else said


def _said_by_last(before: Sequence[str], last: str) -> _Name:
    if last in _WORDS or last.endswith(_ENDINGS) or last in _AUTHORIZING:
        return _Name.SECRET
    if last == "token":
        return _Name.PLAIN if before and before[-1] in _OF_TEXT else _Name.SECRET
    if last == "tokens":
        return _Name.SECRET if {"api", "auth", "access"} & set(before) else _Name.PLAIN
    if last in ("key", "keys"):
        return _Name.SECRET if _BEFORE_KEY & set(before) else _Name.MAY_BE_SECRET
    if last == "pass":
        return _Name.SECRET if _BEFORE_PASS & set(before) else _Name.PLAIN
    if last in _ABOUT:
        return _Name.PLAIN
    holds = set(before) & {*_WORDS, *_AUTHORIZING} or any(
        part.endswith(_ENDINGS) for part in before
    )
    return _Name.SECRET if holds else _Name.PLAIN
