"""Refusals of encrypted objects; of their messages only the key's name is repeated."""

from __future__ import annotations

import pytest

from d7yfs.origins.encryption import undecryptable

ARN = "arn:aws:kms:eu-west-3:123456789012:key/1234abcd-12ab"
KMS = "Requests specifying Server Side Encryption with AWS KMS managed keys"


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (
            "AccessDenied",
            f"User: me is not authorized to perform: kms:Decrypt on resource: {ARN} because",
            f"KMS key {ARN}",
        ),
        ("AccessDenied", f"not authorized to perform: kms:Decrypt on resource: {ARN}.", f"KMS key {ARN}"),
        (
            "AccessDenied",
            "kms:Decrypt on resource: arn:aws-cn:kms:cn-north-1:1:alias/a",
            "KMS key arn:aws-cn:kms:cn-north-1:1:alias/a",
        ),
        ("AccessDenied", f"kms:Decrypt on {ARN}<script>", f"KMS key {ARN}"),
        ("AccessDenied", "no identity-based policy allows the kms:Decrypt action", "its KMS key"),
        ("AccessDenied", "The ciphertext refers to a customer master key that does not exist", "its KMS key"),
        ("KMS.DisabledException", f"{ARN} is disabled.", f"KMS key {ARN} cannot be used (KMS.DisabledException)"),
        ("InvalidArgument", f"{KMS} must be made over a secure connection.", "TLS only"),
        ("InvalidArgument", f"{KMS} require AWS Signature Version 4.", "signed requests only"),
        ("InvalidRequest", "The object was stored using a form of Server Side Encryption. The correct…", "SSE-C"),
    ],
)
def test_meaning(code: str, message: str, reason: str) -> None:
    found = undecryptable(code, message)
    assert found
    assert found.reason.endswith(reason) or reason in found.reason
    assert found.hint
    assert "<" not in found.reason


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AccessDenied", "Access Denied"),
        ("InvalidRequest", "Please use AWS Signature Version 4"),
        ("InvalidArgument", "must use a secure connection"),
        ("KMS.ThrottlingException", "slow down"),
        ("SlowDown", "kms:Decrypt"),
        ("", ""),
    ],
)
def test_other_refusals(code: str, message: str) -> None:
    assert undecryptable(code, message) is None
