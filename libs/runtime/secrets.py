"""Secrets: kept in files or the environment, referred to by name, sealed when they must travel.

Keys of engines are derived, never stored: HMAC-SHA256 of the fleet secret over replica id and generation. What a
machine must know is sealed to its public key (X25519 sealed box of libsodium, through PyNaCl): only it can open it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets as random
from pathlib import Path

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from .cannot_start import CannotStart

CLIENT_KEY_PREFIX = "sk-llmgw-"
SECRET_BYTES = 32


class BadSecret(CannotStart):
    """A secret is missing, unreadable or does not fit; the message says which and what to do, never its value."""


def client_key() -> str:
    """A new key for a client: ``sk-llmgw-`` and 43 characters (256 random bits)."""
    return CLIENT_KEY_PREFIX + random.token_urlsafe(SECRET_BYTES)


def key_hash(key: str) -> str:
    """What is kept and looked up of a client's key: its SHA-256, hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def engine_key(fleet_secret: bytes, replica_id: str, generation: int) -> str:
    """The API key of a replica's engine: the same wherever the fleet secret is known, another for each generation."""
    message = f"engine-key/{replica_id}/{generation}".encode()
    digest = hmac.new(fleet_secret, message, hashlib.sha256).digest()
    return "ek-" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def read_reference(reference: str) -> str:
    """The secret a setting refers to: ``file:/path`` (its content, stripped) or ``env:NAME``. Raises BadSecret."""
    kind, _, name = reference.partition(":")
    if kind == "env" and name:
        value = os.environ.get(name)
        if value is None:
            raise BadSecret(f"the secret {reference} is not there: set the environment variable {name}")
        return value
    if kind == "file" and name:
        try:
            return Path(name).expanduser().read_text().strip()
        except OSError as error:
            raise BadSecret(f"the secret {reference} cannot be read ({error.strerror}): create the file") from None
    # The text itself may be the secret somebody wrote here by mistake: never repeat it.
    raise BadSecret("a reference to a secret must read file:PATH or env:NAME; the secret itself does not belong here")


def fleet_secret(path: Path) -> bytes:
    """The fleet secret in ``path``, made there (32 random bytes as hex, mode 0600) when it is not. Raises BadSecret,
    OSError."""
    if not path.exists():
        write_private(path, random.token_hex(SECRET_BYTES))
    return decode_fleet_secret(path.read_text(), str(path))


def decode_fleet_secret(text: str, where: str) -> bytes:
    """Bytes of a fleet secret written as hex. ``where`` is for the error. Raises BadSecret."""
    try:
        value = bytes.fromhex(text.strip())
    except ValueError:
        value = b""
    if len(value) < SECRET_BYTES:
        raise BadSecret(
            f"the fleet secret in {where} is not {SECRET_BYTES} bytes in hex; make one: openssl rand -hex 32"
        )
    return value


def write_private(path: Path, text: str) -> None:
    """Write a file only its owner can read; whole or not at all. An existing one is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.{os.getpid()}.making")
    with contextlib.suppress(FileNotFoundError):
        making.unlink()
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise


def seal(public_hex: str, secret: bytes) -> str:
    """Seal ``secret`` (hex) so that only the holder of the private key can read it. Raises BadSecret."""
    try:
        box = SealedBox(PublicKey(bytes.fromhex(public_hex)))
    except (ValueError, TypeError, CryptoError):
        raise BadSecret(f"{public_hex[:80]!r} is not a public sealing key of 32 bytes in hex") from None
    return bytes(box.encrypt(secret)).hex()


class SealingKey:
    """A machine's X25519 key pair, in a file only it can read."""

    def __init__(self, private: PrivateKey) -> None:
        self._box = SealedBox(private)
        self.public_hex = bytes(private.public_key).hex()

    def __repr__(self) -> str:
        return f"SealingKey({self.public_hex})"

    @classmethod
    def load(cls, path: Path) -> SealingKey:
        """The pair kept in ``path``, made there when it is not. Raises BadSecret."""
        if not path.exists():
            write_private(path, bytes(PrivateKey.generate()).hex())
        try:
            return cls(PrivateKey(bytes.fromhex(path.read_text().strip())))
        except (ValueError, TypeError, CryptoError):
            raise BadSecret(
                f"{path} does not hold a sealing key; remove the file and a new one is made at the next start"
            ) from None

    def open(self, sealed_hex: str) -> bytes:
        """What was sealed to ``public_hex``. Raises BadSecret."""
        try:
            return bytes(self._box.decrypt(bytes.fromhex(sealed_hex)))
        except (ValueError, TypeError, CryptoError):
            raise BadSecret("this was not sealed to this machine's key, or was changed on the way") from None
