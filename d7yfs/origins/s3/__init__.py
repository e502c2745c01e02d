"""Amazon S3 and the stores that speak its protocol, through botocore."""

import sys

# Where awscrt is installed, which is here for its checksums, botocore loads all of it (20 ms), and signs
# by it: requests to STS, say, would be signed by other code than ours. None means that a module is
# absent (see `origins`).
sys.modules.setdefault("awscrt.auth", None)  # type: ignore[arg-type]
