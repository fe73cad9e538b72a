"""Takes credentials out of exception messages.

Works on text alone, by what stands around a secret (``password=``, ``Authorization:``, ``user:…@host``) and by
the shapes of well-known tokens. When in doubt it hides too much: a lost word costs less than a leaked one.
Never raises, whatever an exception's ``__str__`` does.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Final, NamedTuple

from guarded.events.model import Cause

MAX_LENGTH: Final = 300  # characters of a message that an event carries
_MAX_READ: Final = 1_000  # characters looked at: some rules take quadratic time on a text made to that end

_WORD: Final = r"""(?:
    passw(?:or)?d | passphrase | (?<![a-z])pass(?![a-z]) | (?<![a-z])pwd | (?<![a-z])auth(?![a-z])
  | secret | credentials? | (?<![a-z])jwt | signature | (?<![a-z])sig(?![a-z]) | csrf | (?<![a-z])sid(?![a-z])
  | token(?!s["']?\s*[:=]\s*\d+\b) | session[-_\ ]?(?:id|key)
  | (?:api|access|private|auth|account|encryption|signing|subscription|master|functions|license|storage|shared
      |idempotency)[-_.\ ]?key
)"""
_WORD_SIGNS: Final = "pass pwd auth secret credential jwt sig csrf sid token session key"

# What joins a word to its value; and the value: quoted (up to the same quote), bracketed, an element's text,
# or everything up to the next white space.
_JOIN: Final = r"""(?:\s*(?:=>|:=|[:=]|%3[ad])\s* | (?<=["'])\s*,\s* | > | \s+(?=b?\\?["']))"""
_VALUE: Final = r"""(?:
    b?(\\?["'])(?:\\.|(?!\2).)*(?:\2[^\s,;)}\]]*|$) | \w*[(\[{][^)\]}]*\S* | (?<=>)[^<]* | \S+
)"""


class _Rule(NamedTuple):
    signs: tuple[str, ...]  # in lower case; a text with none of them is spared the pattern
    pattern: str
    replacement: str
    flags: re.RegexFlag

    def apply(self, text: str, lowered: str) -> str:
        if not any(sign in lowered for sign in self.signs):
            return text
        return _compiled(self.pattern, self.flags).sub(self.replacement, text)


_compiled: Final = cache(re.compile)  # at first use: together they take longer to compile than all of events to import


def _rule(signs: str, pattern: str, replacement: str = "***", *, exact: bool = False) -> _Rule:
    flags = re.VERBOSE | re.DOTALL | (re.NOFLAG if exact else re.IGNORECASE)
    return _Rule(tuple(signs.split()), pattern, replacement, flags)


# In this order: a rule may rely on what the earlier ones have left.
_RULES: Final = (
    # private keys in PEM
    _rule("private", r"-----BEGIN\ [A-Z ]*PRIVATE\ KEY.*?(?:-----END[^-]*-----|$)"),
    # the user part of an URL; after a colon it may hold any character, a raw slash or @ too
    _rule("://", r"\b([a-z][a-z0-9+.-]{0,30}://)(?:[^\s/?\#:]*|[^\s/?\#:]*:\S*)@", r"\1***@"),
    # user:password@host without a scheme, as some drivers write it, and Oracle's user/password@host
    _rule("@", r"""(?<![^\s"'(=,</])[\w.%+-]{1,64}:(?!//)[^\s@]+@(?=[\w(\[])""", "***@"),
    _rule("oracle:", r"(oracle:\w+:)[^\s@]+@", r"\1***@"),
    # the query and the fragment of an URL
    _rule("://", r"""\b([a-z][a-z0-9+.-]{0,30}://[^\s?\#"'<>]*[?\#])[^\s"'<>]+""", r"\1***"),
    _rule("key= code=", r"""([?&](?:key|code)=)[^\s&"']+""", r"\1***"),
    # headers that are credentials as a whole: to the end of the quoted value, else of the line
    _rule(
        "authorization cookie",
        r"""((?:authorization|cookie)\\?["']?(?:\s*(?:=>|[:=])\s*|(?<=["'])\s*,\s*))
            (?:b?(\\?["'])(?:\\.|(?!\2).)*(?:\2|$)|[^\r\n]+)""",
        r"\1***",
    ),
    # a word for a secret joined to a value; options of a command line
    _rule(_WORD_SIGNS, rf"""({_WORD}[\w-]{{0,30}}\\?["']?{_JOIN}){_VALUE}""", r"\1***"),
    _rule(_WORD_SIGNS, rf"(--[\w-]{{0,30}}{_WORD}[\w-]{{0,30}}\s+)\S+", r"\1***"),
    _rule("-u --user", r"(?<!\S)((?:-u|--user)[\s=]*)[^\s:]+:\S+", r"\1***"),
    # the schemes of an Authorization header without its name
    _rule("bearer negotiate aws4-", r"""\b(bearer|negotiate|aws4-hmac-sha256)\s+[^\s,;"']+""", r"\1 ***"),
    _rule(
        "basic digest apikey",
        r"\b((?i:basic|digest|apikey))\s+(?=\S*(?:[0-9=+/]|[a-z][A-Z]))[\w+/=.~-]{6,}",
        r"\1 ***",
        exact=True,
    ),
    # a word for a secret followed by something that looks like one
    _rule(
        _WORD_SIGNS,
        rf"({_WORD}\w{{0,30}}\W{{0,3}}\s(?:is\s|was\s|of\s)?\W{{0,2}})(?=\S*\d)[\w+/=.~-]{{6,}}",
        r"\1***",
    ),
    # tokens known by their shape: JWT, AWS, GitHub, GitLab, Slack, Stripe, Google, PyPI, npm, "sk-…"
    _rule("eyj", r"\beyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)*", exact=True),
    _rule("akia asia aroa aida", r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}", exact=True),
    _rule("gh github_ glpat- xox", r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-)[\w-]{8,}", exact=True),
    _rule("_live _test whsec", r"\b(?:(?:sk|rk|pk)_(?:live|test)_|whsec_)[\w-]{8,}", exact=True),
    _rule("aiza ya29 pypi- npm_ sk-", r"\b(?:AIza|ya29\.|pypi-|npm_|sk-)[\w-]{16,}", exact=True),
)

# What would forge or break a log line: white space of any kind, control characters, lone surrogates.
_CONTROL: Final = r"[\s\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+"


def scrub(text: str) -> str:
    """`text` without credentials, on one line, at most `MAX_LENGTH` characters."""
    if len(text) > _MAX_READ:
        # The cut may take away what marks a secret as one (the @ of an URL), so the word it went through goes too.
        text = re.sub(r"\S+\Z", "", text[:_MAX_READ]) + "…"
    lowered = text.lower()
    for rule in _RULES:
        text = rule.apply(text, lowered)
    text = _compiled(_CONTROL).sub(" ", text).strip()
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 1] + "…"


# For the few texts that come again and again: labels, reasons, names of stores.
scrub_cached = lru_cache(maxsize=512)(scrub)


_messages_shown = True


def show_messages(shown: bool) -> bool:
    """Whether events carry the messages of exceptions, scrubbed, or their types only; gives what it was before.

    Scrubbing finds what looks like a credential; a bare name or number that must not be shown it cannot know. Where
    exceptions carry such, turn messages off. Default on.
    """
    global _messages_shown
    before, _messages_shown = _messages_shown, bool(shown)
    return before


def cause_of(error: BaseException) -> Cause:
    """Type and message of an exception, fit to be shown."""
    if not _messages_shown:
        return Cause(type(error).__name__, "")
    try:
        message = scrub(str(error))
    except Exception:  # its own __str__ failed; that must not replace the error it describes
        message = "(its message cannot be read)"
    return Cause(type(error).__name__, message)
