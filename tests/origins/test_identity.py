"""The identity of each provider's store, for other hosts of the cluster and for people."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from d7yfs.config.place import Place
from d7yfs.config.schema import Anonymous, RepositoryConfig
from d7yfs.config.url import RepositoryUrl
from d7yfs.fetch.dragonfly_task import content_id
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.origins import open_origin

VERSION = ObjectVersion("m/model.onnx", 1000, '"etag"', 1)

ACCOUNT = "https://account.blob.core.windows.net"


@pytest.mark.parametrize(
    ("url", "settings", "identity", "content", "shown"),
    [
        (
            "s3://models",
            {},
            StoreIdentity("s3", "aws", "models"),
            "7c7f0cab6a8a1f2dd2d1a7e9e8abd7c9a4750973963c3c59a3203ad7a864f8d1",
            "s3://models",
        ),
        (
            "s3://127.0.0.1:9000/models",
            {},
            StoreIdentity("s3", "http://127.0.0.1:9000", "models"),
            "bc4f6e70db534cb726f3aef7733075c19b9c2f8a22d19858a876645d9300de93",
            "s3://http://127.0.0.1:9000/models",
        ),
        (
            "s3://models",
            {"endpoint_url": "https://host/storage/v1/s3"},
            StoreIdentity("s3", "https://host/storage/v1/s3", "models"),
            "058e7529af8337aae415f9895815180d558240266adc1154ea297890a363db54",
            "s3+encoded://https:%2F%2Fhost%2Fstorage%2Fv1%2Fs3/models",
        ),
        (
            "gs://models",
            {},
            StoreIdentity("gs", "google", "models"),
            "4fd962bcf2b772b0c866590243657701afb88a863e282fb903b8e193cc7e7a09",
            "gs://models",
        ),
        (
            "gs://https://storage.googleapis.com/models",
            {},
            StoreIdentity("gs", "google", "models"),
            "4fd962bcf2b772b0c866590243657701afb88a863e282fb903b8e193cc7e7a09",
            "gs://models",
        ),
        (
            "gs://127.0.0.1:4443/models",
            {},
            StoreIdentity("gs", "http://127.0.0.1:4443", "models"),
            "ee6f139340fe0f484981c9d89202e0d3034043e6d19e7bec280a2099e028e793",
            "gs://http://127.0.0.1:4443/models",
        ),
        (
            "as://account/models",
            {},
            StoreIdentity("as", ACCOUNT, "models", "account"),
            "dd2026a771b8962d4753226bc81d3672ba1dac86bddcf509be6af62b6b40770c",
            "as://account/models",
        ),
        (
            "as://account/models",
            {"endpoint_suffix": "core.chinacloudapi.cn"},
            StoreIdentity("as", "https://account.blob.core.chinacloudapi.cn", "models", "account"),
            "62972a4cccfb3c2edb47115f9347bb51dd4c77206a9d7192cab6de71ff704906",
            "as://https://account.blob.core.chinacloudapi.cn/account/models",
        ),
        (
            "as://http://127.0.0.1:10000/account/models",
            {},
            StoreIdentity("as", "http://127.0.0.1:10000/account", "models", "account"),
            "6e2a8e332f2bf4c195e3be31ca939515ee4ec2bd2f8a6141e81588bbd721e6c4",
            "as://http://127.0.0.1:10000/account/models",
        ),
        (
            "oss://models",
            {"region": "cn-hangzhou"},
            StoreIdentity("oss", "aliyuncs.com", "models"),
            "4d46fc399edcdb0fc0b788ba2332d04ed5f031fc28169c986094f9ede92abd3f",
            "oss://models",
        ),
        (
            "oss://models.oss-cn-hangzhou-internal.aliyuncs.com",
            {},
            StoreIdentity("oss", "aliyuncs.com", "models"),
            "4d46fc399edcdb0fc0b788ba2332d04ed5f031fc28169c986094f9ede92abd3f",
            "oss://models",
        ),
        (
            "oss://http://10.0.0.1/models",
            {"region": "r"},
            StoreIdentity("oss", "http://10.0.0.1", "models"),
            "608353e440481de41bc70e76ad65f1f22f48b71064092171849d9169cfbf1da8",
            "oss://http://10.0.0.1/models",
        ),
        (
            "obs://models",
            {"region": "cn-north-4"},
            StoreIdentity("obs", "myhuaweicloud.com", "models"),
            "47cf8f25508470675c2ed8ecd1b9ccf344cbfe8f059c150ba84575ceb4e92f4f",
            "obs://models",
        ),
        (
            "obs://models",
            {"region": "eu-west-101", "endpoint_suffix": "myhuaweicloud.eu"},
            StoreIdentity("obs", "myhuaweicloud.eu", "models"),
            "04382ed351d57db1e88cc5147fd9d0cd4e8ff211345868eb30fdd96ec12369fb",
            "obs+encoded://myhuaweicloud.eu/models",
        ),
        (
            "obs://https://obs.corp.example/models",
            {"region": "lab"},
            StoreIdentity("obs", "https://obs.corp.example", "models"),
            "7f4da96284af496366f4a081787f4ec5fc2f0b83d07fa449169103877dec16a2",
            "obs://https://obs.corp.example/models",
        ),
    ],
)
async def test_identity(url: str, settings: dict[str, str], identity: StoreIdentity, content: str, shown: str) -> None:
    """The content ids are golden: another one would split a cluster's tasks between releases."""
    config = RepositoryConfig(url=RepositoryUrl.parse(url), **settings)  # type: ignore[arg-type]
    async with aclosing(open_origin(config, Anonymous())) as origin:
        assert origin.identity == identity
        assert content_id(origin.identity, VERSION) == content
        assert str(Place(origin.identity)) == shown
        assert Place.parse(shown) == Place(origin.identity)
        if not settings.keys() & {"endpoint_url", "endpoint_suffix"}:
            assert Place.parse(url) == Place(origin.identity), "as a mount's URL names it"
