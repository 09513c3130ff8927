"""What Spark is told about S3 (`fs.s3a.…`), in the words of the other clients that open the same buckets.

Workers open objects with Arrow, and the logs of tables are read by `deltalake` and `pyiceberg`. None of them has a JVM
to ask, so each gets what Spark's user has given already, also for single buckets (`fs.s3a.bucket.NAME.…`). Roles of a
machine and keys in the environment stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMES = ("s3a", "s3")

# Settings of S3A that the other clients cannot follow.
_BEYOND = ("encryption.algorithm", "server-side-encryption-algorithm", "proxy.host", "assumed.role.arn")
_ANONYMOUS = "AnonymousAWSCredentialsProvider"
_KNOWN_PROVIDERS = {
    "TemporaryAWSCredentialsProvider", "SimpleAWSCredentialsProvider", "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider", "DefaultCredentialsProvider", _ANONYMOUS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How a bucket is reached. An empty text is what was not given.

    >>> told = {"spark.hadoop.fs.s3a.endpoint": "localhost:9000", "spark.hadoop.fs.s3a.connection.ssl.enabled": "false"}
    >>> S3Settings.from_conf(told, "lake").arrow()
    {'endpoint_override': 'localhost:9000', 'scheme': 'http'}
    """

    access_key: str
    secret_key: str
    session_token: str
    region: str
    endpoint: str  # With its scheme.
    is_anonymous: bool
    is_path_style: bool
    is_whole: bool  # Whether this is all that Spark was told: no keys for encryption, no provider of the user's own.

    @classmethod
    def from_spark(cls, spark: SparkSession, bucket: str) -> S3Settings:
        if is_connect(spark):
            return cls._of(lambda name: spark.conf.get(f"spark.hadoop.{name}", None), bucket)
        settings: Any = spark.sparkContext._jsc.hadoopConfiguration()
        return cls._of(settings.get, bucket)

    @classmethod
    def from_conf(cls, conf: Mapping[str, str], bucket: str) -> S3Settings:
        """By the settings of a session that has not started yet (`spark.hadoop.fs.s3a.…`)."""
        return cls._of(lambda name: conf.get(f"spark.hadoop.{name}"), bucket)

    @classmethod
    def _of(cls, setting: Callable[[str], str | None], bucket: str) -> S3Settings:
        def get(name: str) -> str:
            return str(setting(f"fs.s3a.bucket.{bucket}.{name}") or setting(f"fs.s3a.{name}") or "")

        providers = {name.strip().rpartition(".")[2] for name in get("aws.credentials.provider").split(",")} - {""}
        has_more = any(map(get, _BEYOND)) or bool(setting("hadoop.security.credential.provider.path"))
        endpoint = get("endpoint")
        if endpoint and "://" not in endpoint:
            endpoint = f"{'http' if get('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
        return cls(
            access_key=get("access.key"),
            secret_key=get("secret.key"),
            session_token=get("session.token"),
            region=get("endpoint.region") or get("region"),
            endpoint=endpoint,
            is_anonymous=providers == {_ANONYMOUS},
            is_path_style=get("path.style.access") == "true",
            is_whole=providers <= _KNOWN_PROVIDERS and not has_more,
        )

    def arrow(self) -> dict[str, Any]:
        """For `pyarrow.fs.S3FileSystem`."""
        scheme, _, host = self.endpoint.partition("://")
        return _given(
            access_key=self.access_key,
            secret_key=self.secret_key,
            session_token=self.session_token,
            region=self.region,
            endpoint_override=host,
            scheme=scheme,
            anonymous=self.is_anonymous,
        )

    def delta(self) -> dict[str, str]:
        """For `deltalake`. A commit is a conditional PUT, which S3 itself and most stores of its protocol have."""
        return _given(
            AWS_ACCESS_KEY_ID=self.access_key,
            AWS_SECRET_ACCESS_KEY=self.secret_key,
            AWS_SESSION_TOKEN=self.session_token,
            AWS_REGION=self.region,
            AWS_ENDPOINT_URL=self.endpoint,
            AWS_ALLOW_HTTP="true" if self.endpoint.startswith("http://") else "",
            AWS_SKIP_SIGNATURE="true" if self.is_anonymous else "",
            AWS_VIRTUAL_HOSTED_STYLE_REQUEST="false" if self.is_path_style else "",
            AWS_CONDITIONAL_PUT="etag",
        )

    def iceberg(self) -> dict[str, str]:
        """For `pyiceberg`."""
        return {
            f"s3.{name.replace('_', '-')}": value
            for name, value in _given(
                access_key_id=self.access_key,
                secret_access_key=self.secret_key,
                session_token=self.session_token,
                region=self.region,
                endpoint=self.endpoint,
                anonymous="true" if self.is_anonymous else "",
            ).items()
        }


def bucket_of(location: str) -> str:
    """The bucket of a URI; empty for another place.

    >>> bucket_of("s3a://lake/events"), bucket_of("/data/events")
    ('lake', '')
    """
    scheme, separator, path = location.partition("://")
    return path.partition("/")[0] if separator and scheme in SCHEMES else ""


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}
