"""What is found in a text, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.guard.core import detect
from services.guard.core.secret_formats import ANY_LITERAL, FORMATS
from services.guard.core.text import Text

# Put together here, so that no scanner takes this file for a leak. None of them is or was a real key.
ALNUM = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6a7B8c9D0e1F2g3H4"
HEX = "0123456789abcdef" * 8
BASE64 = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7" + "Vb3k9Lq2" * 8

SECRETS: dict[str, list[str]] = {
    "llmgw_key": ["sk-llmgw-" + ALNUM[:43]],
    "aws_access_key": ["AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "Y34FZKBOKMUTVV7A"],
    "aws_secret_key": ["wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"],
    "github_token": ["ghp_" + ALNUM[:36], "ghs_" + ALNUM[:36], "gho_" + ALNUM[:40]],
    "github_pat": ["github_pat_" + ALNUM[:22] + "_" + ALNUM[:59]],
    "gitlab_token": ["glpat-" + ALNUM[:20], "glrt-" + ALNUM[:20]],
    "slack_token": ["xoxb-" + "123456789012-1234567890123-" + ALNUM[:24], "xoxp-" + ALNUM[:30]],
    "slack_app_token": ["xapp-" + "1-A0123456789-1234567890123-" + HEX[:64]],
    "slack_webhook": ["hooks.slack.com/services/" + "T01234567/B01234567/" + ALNUM[:24]],
    "google_api_key": ["AIza" + "SyA-" + ALNUM[:31]],
    "google_oauth": ["GOCSPX-" + ALNUM[:28], "ya29." + ALNUM[:40]],
    "openai_key": ["sk-proj-" + ALNUM[:40], "sk-" + ALNUM[:20] + "T3BlbkFJ" + ALNUM[20:40], "sk-svcacct-" + ALNUM[:40]],
    "anthropic_key": ["sk-ant-api03-" + ALNUM[:60] + "-_AA"],
    "sk_key": ["sk-" + ALNUM[:48], "sk-or-v1-" + HEX[:64]],
    "huggingface_token": ["hf_" + ALNUM[:34]],
    "groq_key": ["gsk_" + ALNUM[:52]],
    "replicate_token": ["r8_" + ALNUM[:37]],
    "stripe_key": ["sk_live_" + ALNUM[:24], "rk_test_" + ALNUM[:24], "whsec_" + ALNUM[:32]],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + ALNUM[:43]],
    "private_key": [
        "-----BEGIN PRIVATE " + f"KEY-----\n{BASE64[:64]}\n{BASE64[:40]}==\n-----END PRIVATE " + "KEY-----",
        "-----BEGIN RSA PRIVATE "
        + f"KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0F\n\n{BASE64[:64]}\n-----END RSA PRIVATE "
        + "KEY-----",
        "-----BEGIN PRIVATE " + f"KEY-----\\n{BASE64[:64]}\\n-----END PRIVATE " + "KEY-----",
        "-----BEGIN PGP PRIVATE " + f"KEY BLOCK-----\n\n{BASE64[:64]}\n=abcd\n-----END PGP PRIVATE " + "KEY BLOCK-----",
    ],
    "connection_string": [
        "postgres://app:s3cr3t@db.example.com:5432/orders",
        "mongodb+srv://u:p%40ss@cluster0.example.net/?retryWrites=true",
        "redis://:hunter2@cache:6379/0",
        "https://user:p@ss@example.com",
    ],
    "azure_storage_key": [ALNUM[:60] + ALNUM[:26] + "=="],
    "npm_token": ["npm_" + ALNUM[:36]],
    "pypi_token": ["pypi-AgEIcHlwaS5vcmc" + ALNUM[:60]],
    "sendgrid_key": ["SG." + ALNUM[:22] + "." + ALNUM[:43]],
    "digitalocean_token": ["dop_v1_" + HEX[:64]],
    "databricks_token": ["dapi" + HEX[:32]],
    "vault_token": ["hvs." + ALNUM[:60]],
    "telegram_token": ["123456789:AA" + ALNUM[:33]],
}
CONTEXT = {
    "aws_secret_key": [
        "aws_secret_access_key = {}",
        '"SecretAccessKey": "{}"',
        "my AWS secret key is {} ok?",
        "AWS_SECRET_ACCESS_KEY={}",
        "AWS_SECRET={}",
        "aws_secret_access_key:\n  {}",
    ],
    "azure_storage_key": ["AccountName=x;AccountKey={};EndpointSuffix=core.windows.net"],
}


def found(text: str) -> list[tuple[str, str]]:
    data = Text(text)
    return [(m.rule, data.data[m.start : m.end].decode()) for m in detect.secrets(data)]


def test_every_format_in_the_table_has_an_example_here() -> None:
    assert set(SECRETS) == {f.name for f in FORMATS}
    assert all(f.source for f in FORMATS)


def test_a_text_with_any_literal_of_the_table_is_looked_closer_at() -> None:
    assert all(ANY_LITERAL.search(b"xyz " + literal) for f in FORMATS for literal in f.literals)
    assert ANY_LITERAL.search(b"the quick brown fox") is None


@pytest.mark.parametrize(("name", "secret"), [(n, s) for n, examples in SECRETS.items() for s in examples])
def test_a_secret_is_found_whole_wherever_it_stands(name: str, secret: str) -> None:
    for sentence in CONTEXT.get(name, ["{}", "here: {} thanks", 'export KEY="{}"', "(`{}`)", "clé {}\nmañana"]):
        text = sentence.format(secret)
        assert (f"secrets.{name}", secret) in found(text), text


@pytest.mark.parametrize(
    "text",
    [
        "AKIA is how AWS keys begin",
        "the task-list and risk-assessment are in ask-me-anything",
        "a sha256 is 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "commit 356a192b7913b04c54574d18c28d46e6395428ab fixed it",
        "postgres://app:${DB_PASSWORD}@db/orders and mysql://u:****@h/x and amqp://u:{password}@h",
        "see https://example.com:8080/a@b and http://localhost:11434/v1",
        "What does -----BEGIN PRIVATE KEY----- mean, and how is it unlike -----BEGIN RSA PRIVATE KEY-----?",
        'eyJ is base64 of {", as in eyJhbGciOiJIUzI1NiJ9',
        'Revert "rename secret key" 17182e3b7913b04c54574d18c28d46e6395428ab',
        "redis://user:password@localhost and mysql://root:$password@h and amqp://u:YOUR_PASSWORD@h and a://b:changeme@c",
        "github_pat_ and ghp_ and xoxb- and sk-ant- are prefixes",
    ],
)
def test_what_only_looks_like_a_secret_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_a_key_with_a_name_of_its_own_is_named_once() -> None:
    key = "sk-" + ALNUM[:20] + "T3BlbkFJ" + ALNUM[20:40]
    assert found(key) == [("secrets.openai_key", key)]


def test_a_private_key_that_was_cut_off_is_found_to_its_end() -> None:
    text = "-----BEGIN PRIVATE " + f"KEY-----\n{BASE64[:64]}\n{BASE64[:30]}"
    assert found(text) == [("secrets.private_key", text)]


def emails(text: str) -> list[str]:
    data = Text(text)
    return [data.data[m.start : m.end].decode() for m in detect.emails(data)]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("write to bob@example.com.", ["bob@example.com"]),
        ("<a.b+c@sub.example.co.uk>, or 'x_y@z.io'", ["a.b+c@sub.example.co.uk", "x_y@z.io"]),
        ("jürgen@müller.de und иван@пример.рф", ["jürgen@müller.de", "иван@пример.рф"]),
        ("请联系bob@example.com谢谢", ["bob@example.com"]),
        ("x@localhost, @user, a@b, user@-x.com, 3@4.5", []),
        ("bob@example.com,ann@example.com;", ["bob@example.com", "ann@example.com"]),
        ("mailto:bob@example.com?subject=x", ["bob@example.com"]),
        ("`bob@example.com`", ["bob@example.com"]),
        ("git clone git@github.com:acme/widgets.git and deploy@build.example:/srv/app", []),
        ("ssh deploy@build.example, scp -P 22 a.tgz deploy@build.example and ssh -p 22 ops@h.example", []),
        ("ssh://git@git.example/x.git and git+ssh://me@git.example/x", []),
        ("ask bob@example.com: why ssh? ann@example.com knows", ["bob@example.com", "ann@example.com"]),
        ("use ssh\nbob@example.com", ["bob@example.com"]),
    ],
)
def test_addresses(text: str, addresses: list[str]) -> None:
    assert emails(text) == addresses


def cards(text: str) -> list[str]:
    data = Text(text)
    return [data.data[m.start : m.end].decode() for m in detect.cards(data)]


# Test numbers the networks and payment providers publish.
NUMBERS = {
    "visa": "4111111111111111",
    "visa 13": "4222222222222",
    "mastercard": "5555555555554444",
    "mastercard 2": "2223003122003222",
    "amex": "378282246310005",
    "discover": "6011111111111117",
    "diners": "30569309025904",
    "jcb": "3530111333300000",
    "unionpay": "6200000000000005",
}


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_a_card_is_found_in_one_piece_and_in_groups(number: str) -> None:
    in_fours = " ".join(number[i : i + 4] for i in range(0, len(number), 4))
    for written in (number, in_fours, in_fours.replace(" ", "-")):
        assert cards(f"card {written}, thanks") == [written]
        assert cards(f"on 2024 {written} 12/27") == [written]


def test_american_express_as_it_is_printed() -> None:
    assert cards("3782 822463 10005") == ["3782 822463 10005"]


@pytest.mark.parametrize(
    "text",
    [
        "4111111111111112",  # wrong check digit
        "94111111111111111",  # longer than any number of that network
        "0000000000000000",
        "1234567812345670",  # right check digit, no network
        "0.4111111111111111",  # decimals
        "id_4111111111111111",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
        "4111  1111  1111  1111",
        "2024-01-02 10:30:00 4111",
        "article number 4006381333931",
        "Artikelnummer: 4222222222222",
        "parcel no. 3528000000000007, tracking 4111111111111111",
        "meter 36000000000008, Zählernummer 36000000000008",
    ],
)
def test_what_only_looks_like_a_card_is_left_alone(text: str) -> None:
    assert cards(text) == []


@given(st.text(alphabet="0123456789", min_size=1, max_size=30))
def test_luhn_is_what_its_definition_says(digits: str) -> None:
    total = sum(int(d) if i % 2 == 0 else sum(map(int, str(2 * int(d)))) for i, d in enumerate(reversed(digits)))
    assert detect.luhn(digits.encode()) == (total % 10 == 0)


@given(st.text(max_size=200), st.sampled_from(list(NUMBERS.values())), st.text(max_size=200))
def test_a_card_is_found_whatever_stands_around_it(before: str, number: str, after: str) -> None:
    """Given any text, when a card stands in it on a line of its own, then it is found."""
    assert number in cards(f"{before}\n{number}\n{after}")


@given(st.text())
def test_no_text_breaks_a_detector(text: str) -> None:
    data = Text(text)
    for find in (detect.secrets, detect.emails, detect.cards):
        for match in find(data):
            assert 0 <= match.start < match.end <= len(data.data)
            points = data.points([match.start, match.end])
            assert (
                text.encode("utf-8", "replace")[match.start : match.end].decode()
                == text[points[match.start] : points[match.end]].encode("utf-8", "replace").decode()
            )
