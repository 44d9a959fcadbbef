"""AssumeRoleWithWebIdentity with the checks of STS: moto accepts any four characters as a token.

STS checks the token's signature (by the keys of the cluster that has its issuer), its expiry, the IAM OIDC provider and
its audiences, and the role's trust policy:
https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
"""

from __future__ import annotations

from typing import Any

import jwt
from moto.iam.models import iam_backends
from moto.sts.responses import TokenResponse

from local.aws.account import ACCOUNT_ID, PARTITION
from local.aws.eks.store import store
from local.aws.errors import ApiError
from local.aws.identity import role_for
from local.aws.policy import Request, as_list, evaluate_for

ACTION = "sts:AssumeRoleWithWebIdentity"


def verified_claims(token: str) -> dict[str, Any]:
    """Return the claims of a token that a cluster of this cloud signed.

    Raises:
        ApiError: The token is not valid. It has STS's code.
    """
    try:
        header = jwt.get_unverified_header(token)
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss", "")
    except jwt.PyJWTError as error:
        raise ApiError("InvalidIdentityToken", f"The ID Token provided is not a valid JWT: {error}") from None
    cluster = store.by_issuer(issuer)
    keys = (cluster.jwks if cluster else {}).get("keys", [])
    key = next((k for k in keys if k.get("kid") == header.get("kid")), None)
    if key is None:
        raise ApiError(
            "InvalidIdentityToken",
            f"Couldn't retrieve verification key from your identity provider: {issuer}",
        )
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            jwt.PyJWK(key).key,
            algorithms=["RS256", "ES256"],
            issuer=issuer,
            options={"verify_aud": False, "require": ["exp", "sub", "aud"]},
        )
    except jwt.ExpiredSignatureError:
        raise ApiError("ExpiredTokenException", "Token expired") from None
    except jwt.PyJWTError as error:
        raise ApiError("InvalidIdentityToken", f"Token verification failed: {error}") from None
    return claims


def check(role_arn: str, claims: dict[str, Any]) -> None:
    """Raise ApiError unless the OIDC provider exists and the role trusts these claims."""
    denied = ApiError("AccessDenied", f"Not authorized to perform {ACTION}")
    issuer = str(claims["iss"]).removeprefix("https://")
    iam = iam_backends[ACCOUNT_ID][PARTITION]
    provider_arn = f"arn:aws:iam::{ACCOUNT_ID}:oidc-provider/{issuer}"
    provider = iam.open_id_providers.get(provider_arn)
    if provider is None:
        raise ApiError(
            "InvalidIdentityToken", f"No OpenIDConnect provider found in your account for https://{issuer}"
        )
    audiences = [str(a) for a in as_list(claims["aud"])]
    if not set(audiences) & set(provider.client_id_list):
        raise ApiError("InvalidIdentityToken", "Incorrect token audience")
    role = role_for(role_arn)
    if role is None:
        raise denied
    # Condition keys of a provider: its issuer, and the claim. One trusted audience of several is enough.
    registered = [each for each in audiences if each in provider.client_id_list]
    requests = (
        Request(
            ACTION, None, {f"{issuer}:sub".lower(): (str(claims["sub"]),), f"{issuer}:aud".lower(): (each,)}
        )
        for each in registered
    )
    trust = role.assume_role_policy_document
    if not any(evaluate_for(trust, "Federated", [provider_arn], each).allowed for each in requests):
        raise denied


def install() -> None:
    """Check each call before moto creates the session."""
    assume = TokenResponse.assume_role_with_web_identity

    def assume_role_with_web_identity(self: Any) -> Any:
        claims = verified_claims(self._get_param("WebIdentityToken") or "")
        check(self._get_param("RoleArn"), claims)
        result = assume(self)
        result.result["SubjectFromWebIdentityToken"] = claims["sub"]
        return result

    TokenResponse.assume_role_with_web_identity = assume_role_with_web_identity
