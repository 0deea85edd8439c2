"""The shapes of well-known secrets, as their issuers document them.

Each format has one literal at least that must be in the text before its pattern is tried: most texts have none
of them, and looking for a literal costs a fraction of a pattern. Patterns are RE2, so none can be made slow.
"""

from __future__ import annotations

from typing import NamedTuple

import re2


class SecretFormat(NamedTuple):
    name: str
    """Stands in findings as ``secrets.NAME``."""
    literals: tuple[bytes, ...]
    """Lower case; one of them is in every text (lowered) that holds such a secret."""
    pattern: str
    """Group 1, where there is one, is the secret itself; what is around it only tells what it is."""
    source: str
    """Where the format is documented."""


_GITHUB = "GitHub docs, About authentication: GitHub's token formats"
_GITLAB = "GitLab docs, Token overview: token prefixes"
_SLACK = "Slack API docs, Tokens"
_AWS = "AWS IAM user guide, Identifiers: unique ID prefixes"
_PEM = r"[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----"

FORMATS: tuple[SecretFormat, ...] = (
    SecretFormat(
        "llmgw_key",
        (b"sk-llmgw-",),
        r"\bsk-llmgw-[A-Za-z0-9_-]{43}",
        "llmgw: a client key is 32 random bytes, base64url",
    ),
    SecretFormat(
        "aws_access_key",
        (b"akia", b"asia", b"abia", b"acca"),
        r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
        _AWS,
    ),
    SecretFormat(
        "aws_secret_key",
        (b"aws", b"secret"),
        # 40 characters of base64 could be anything, so the name beside it has to say what it is.
        r"(?i)(?:\baws[a-z0-9 _.\-]{0,40}?key|(?:\b|_)secret(?:[_ -]?access)?(?:[_ -]?key)?)"
        r"""["']?[ \t]{0,8}(?:=>|:=|=|:|\bis\b)?\s{0,8}["'`]?([A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|$)""",
        "AWS IAM user guide, Managing access keys: example secret access key",
    ),
    SecretFormat(
        "github_token", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{36,255}", _GITHUB
    ),
    SecretFormat("github_pat", (b"github_pat_",), r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}", _GITHUB),
    SecretFormat(
        "gitlab_token",
        (b"glpat-", b"gloas-", b"gldt-", b"glrt-", b"glcbt-", b"glptt-", b"glft-", b"glimt-", b"glagent-", b"glsoat-"),
        r"\bgl(?:pat|oas|dt|rt|cbt|ptt|ft|imt|agent|soat)-[A-Za-z0-9_.-]{20,300}",
        _GITLAB,
    ),
    SecretFormat("slack_token", (b"xox",), r"\bxox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,250}", _SLACK),
    SecretFormat("slack_app_token", (b"xapp-",), r"\bxapp-[0-9]-[A-Z0-9]{6,20}-[0-9]{8,20}-[a-f0-9]{32,128}", _SLACK),
    SecretFormat(
        "slack_webhook",
        (b"hooks.slack.com/",),
        r"\bhooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/_-]{40,80}",
        "Slack API docs, Incoming webhooks",
    ),
    SecretFormat("google_api_key", (b"aiza",), r"\bAIza[0-9A-Za-z_-]{35}", "Google Cloud docs, Manage API keys"),
    SecretFormat(
        "google_oauth",
        (b"gocspx-", b"ya29."),
        r"\b(?:GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{20,400})",
        "Google Identity docs, OAuth 2.0 client secrets and access tokens",
    ),
    SecretFormat(
        "openai_key",
        (b"sk-proj-", b"sk-svcacct-", b"sk-admin-", b"t3blbkfj"),
        r"\bsk-(?:(?:proj|svcacct|admin)-[A-Za-z0-9_-]{20,250}|[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20})",
        "OpenAI API reference, Authentication and Admin API keys",
    ),
    SecretFormat(
        "anthropic_key", (b"sk-ant-",), r"\bsk-ant-[A-Za-z0-9_-]{20,250}", "Anthropic API docs, Getting started"
    ),
    SecretFormat(
        "sk_key",
        (b"sk-",),
        # What most OpenAI-compatible providers hand out: letters and digits only, 32 or more.
        r"\bsk-(?:or-v1-)?[A-Za-z0-9]{32,128}\b",
        "DeepSeek, OpenRouter and other API docs: keys begin with sk-",
    ),
    SecretFormat("huggingface_token", (b"hf_",), r"\bhf_[A-Za-z0-9]{34,40}\b", "Hugging Face docs, User access tokens"),
    SecretFormat("groq_key", (b"gsk_",), r"\bgsk_[A-Za-z0-9]{52}\b", "Groq docs, API keys"),
    SecretFormat("replicate_token", (b"r8_",), r"\br8_[A-Za-z0-9]{37}\b", "Replicate docs, API tokens"),
    SecretFormat(
        "stripe_key",
        (b"sk_live_", b"sk_test_", b"rk_live_", b"rk_test_", b"whsec_"),
        r"\b(?:[rs]k_(?:live|test)_[A-Za-z0-9]{10,250}|whsec_[A-Za-z0-9+/]{32,64})",
        "Stripe docs, API keys and webhook signatures",
    ),
    SecretFormat(
        "jwt",
        (b"eyj",),
        # Base64url of {" begins with eyJ; header and claims are both such objects.
        r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
        "RFC 7519, section 3",
    ),
    SecretFormat(
        "private_key",
        (b"private key",),
        # From the header line (with a line of base64 within reach) to the footer, or as far as the key goes
        # when it was cut off; line breaks may be written as a backslash and an n.
        rf"-----BEGIN{_PEM}[A-Za-z0-9+/=,:.()\s\\-]{{0,400}}?[A-Za-z0-9+/=]{{32}}"
        rf"""[A-Za-z0-9+/=\s\\"',]*(?:-----END{_PEM})?""",
        "RFC 7468; RFC 9580, section 6.2 (OpenPGP)",
    ),
    SecretFormat(
        "connection_string",
        (b"://",),
        r"""(?i)\b[a-z][a-z0-9+.-]{1,30}://[^\s:/@"'`<>?#]{0,100}:([^\s/"'`<>]{1,200})@[A-Za-z0-9_.\[\]:,%-]{1,255}"""
        r"""(?:/[^\s"'`<>)]{0,200})?""",
        "RFC 3986, section 3.2.1: password in the user information",
    ),
    SecretFormat(
        "azure_storage_key",
        (b"accountkey=",),
        r"(?i)\bAccountKey=([A-Za-z0-9+/]{86}==)",
        "Azure docs, Configure Azure Storage connection strings",
    ),
    SecretFormat("npm_token", (b"npm_",), r"\bnpm_[A-Za-z0-9]{36}\b", "npm docs, About access tokens"),
    SecretFormat(
        "pypi_token",
        (b"pypi-ageichlwas5vcmc",),
        r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,1000}",
        "PyPI help, API tokens",
    ),
    SecretFormat("sendgrid_key", (b"sg.",), r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", "SendGrid docs, API keys"),
    SecretFormat("digitalocean_token", (b"_v1_",), r"\bdo[opr]_v1_[a-f0-9]{64}\b", "DigitalOcean docs, API tokens"),
    SecretFormat("databricks_token", (b"dapi",), r"\bdapi[a-f0-9]{32}\b", "Databricks docs, Personal access tokens"),
    SecretFormat("vault_token", (b"hvs.", b"hvb."), r"\bhv[sb]\.[A-Za-z0-9_-]{24,300}", "HashiCorp Vault docs, Tokens"),
    SecretFormat(
        "telegram_token", (b":aa",), r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}", "Telegram Bot API, Authorizing your bot"
    ),
)

_options = re2.Options()
_options.log_errors = False

COMPILED = tuple((f"secrets.{f.name}", f.literals, re2.compile(f.pattern.encode(), _options)) for f in FORMATS)
"""Rule, literals, compiled pattern."""
ANY_LITERAL = re2.compile(b"|".join(re2.escape(literal) for f in FORMATS for literal in f.literals), _options)
"""Whether there is anything to look closer at, in one pass: looking for each literal takes ten times as long."""

_TEMPLATE = re2.compile(
    rb"^(?:\$[A-Za-z_][A-Za-z0-9_]*|\$[{(].*|\{.*\}|%\(.*\)s|%[sv]|\[.*\]|\*+|[xX]+|\.+"
    rb"|(?i:(?:(?:your|my|the|db|user)[-_]?)?(?:password|passwd|passwort|pass|pwd|secret)|changeme|example))$",
    _options,
)


def is_template(password: bytes) -> bool:
    """A password that only shows where one goes: ``${DB_PASSWORD}``, ``{password}``, ``YOUR_PASSWORD``, ``****``."""
    return _TEMPLATE.search(password) is not None
