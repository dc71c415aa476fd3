"""DSSE envelopes: a payload, its type, and a signature over exactly these bytes.

Nothing in an envelope chooses how it is checked: the caller says which payload type and which keys
count, and a key id is ignored.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from weightshift.artifacts.signing_keys import SigningKey, VerificationKeys


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """One payload with one signature."""

    payload_type: str
    payload: bytes
    signature: bytes

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "payload": base64.b64encode(self.payload).decode(),
            "payloadType": self.payload_type,
            "signatures": [{"sig": base64.b64encode(self.signature).decode(), "keyid": ""}],
        }


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: type and payload, each with its length in front."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_payload(payload_type: str, payload: bytes, key: SigningKey) -> Envelope:
    """Return a signed envelope."""
    signature = key.sign(pre_authentication_encoding(payload_type, payload))
    return Envelope(payload_type=payload_type, payload=payload, signature=signature)


def read_envelope(document: object) -> Envelope:
    """Read the JSON form; its content is not to be trusted yet. Raises `ValueError`."""
    match document:
        case {
            "payload": str(payload),
            "payloadType": str(payload_type),
            "signatures": [{"sig": str(signature), **rest}],
            **others,
        } if not others and set(rest) <= {"keyid"}:
            return Envelope(payload_type=payload_type, payload=_decode(payload), signature=_decode(signature))
    raise ValueError("it is not a DSSE envelope with one signature")


def verified_payload(envelope: Envelope, *, payload_type: str, keys: VerificationKeys) -> bytes:
    """Return the payload once one of the keys has signed it as this type. Raises `ValueError`."""
    if envelope.payload_type != payload_type:
        raise ValueError(f"it is not of type {payload_type}")
    signed = pre_authentication_encoding(payload_type, envelope.payload)
    if not keys.accept(signed, envelope.signature):
        raise ValueError(f"none of the accepted {keys.role} keys has signed it")
    return envelope.payload


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("it holds something other than base64") from None
