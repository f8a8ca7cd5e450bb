"""Reasons for which a store fails and which a user can mend, found in the text of obstore's errors."""

from __future__ import annotations

import os

from tilewright.errors import ResourceError

NO_BUCKET = ("<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>")  # in the answers of S3 and Google; of Azure
PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}  # of obstore's variables
ROLES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")  # servers that know a machine's role
CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
UNFINISHED = {  # of obstore's own errors
    "Missing AccessKeyId": "AWS_ACCESS_KEY_ID",
    "Missing SecretAccessKey": "AWS_SECRET_ACCESS_KEY",
    "Account must be specified": "AZURE_STORAGE_ACCOUNT_NAME",
}


def no_bucket(error: BaseException, url: str) -> ResourceError | None:
    """The error for a missing bucket; None if it is not missing. url: of an object in it."""
    if not any(code in str(error) for code in NO_BUCKET):
        return None
    scheme, _, rest = url.partition("://")
    kind = "container" if scheme == "az" else "bucket"
    return ResourceError(f"there is no {kind} {rest.partition('/')[0]!r}", path=url,
                         remedy=f"make it first, or correct the {kind}'s name in the URL")  # fmt: skip


def reason_of(error: BaseException, url: str) -> ResourceError | None:
    """The error for a reason that is known; None for any other."""
    text, scheme = str(error).partition("Debug source")[0], url.partition("://")[0]
    prefix, names = PREFIXES.get(scheme, ""), CREDENTIALS.get(scheme, ())
    if found := no_bucket(error, url):
        return found
    if "builder error" in text and " http://" in text:
        return ResourceError("the store's address begins with http://, which is not encrypted", path=url,
                             remedy=f"set the environment variable {prefix}ALLOW_HTTP=true to allow it")  # fmt: skip
    for said, name in UNFINISHED.items():
        if said in text:
            return ResourceError(f"the environment variable {name} is not set", path=url, remedy="set it")
    missing = [name for name in names if name not in os.environ]
    if missing and any(server in text for server in ROLES):
        are = "is" if len(missing) == 1 else "are"
        variables = f"the environment variable{'s' * (len(missing) > 1)} {' and '.join(missing)} {are} not set"
        return ResourceError(f"{variables}, and this machine has no role that gives access", path=url,
                             remedy=f"set {' and '.join(names)}")  # fmt: skip
    return None
