"""Images of the account's own registry, and those that nobody can be asked about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import NOW, account, checks, only, wanted
from trainyard.preflight.container_images import Place, place_of
from trainyard.preflight.run import Report, examine
from trainyard.preflight.wanted import WantedImage

pytestmark = pytest.mark.unit

KEY = "trainyard:images.trainer"
OURS = f"123456789012.dkr.ecr.{REGION}.amazonaws.com"
DIGEST = f"sha256:{'0' * 64}"
OF = checks("container images")


def image(reference: str, name: str = "trainer") -> WantedImage:
    return WantedImage(key=f"trainyard:images.{name}", name=name, reference=reference)


def report(cloud: Cloud, *images: WantedImage, credentials: dict[str, str] | None = None) -> Report:
    return examine(account(cloud, credentials), wanted(images=images), NOW, OF)


def pushed(cloud: Cloud, tag: str = "v1") -> str:
    """The digest of an image in the repository `team/trainer`."""
    ecr = cloud.client("ecr")
    ecr.create_repository(repositoryName="team/trainer")
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": 1,
            "digest": DIGEST,
        },
        "layers": [],
    }
    made = ecr.put_image(repositoryName="team/trainer", imageManifest=json.dumps(manifest), imageTag=tag)
    return str(made["image"]["imageId"]["imageDigest"])


@pytest.mark.parametrize(
    ("reference", "place"),
    [
        (f"{OURS}/a/b@{DIGEST}", Place(account="123456789012", region=REGION, repository="a/b",
                                       identity=("imageDigest", DIGEST))),
        (f"{OURS}/a:v1@{DIGEST}", Place(account="123456789012", region=REGION, repository="a",
                                        identity=("imageDigest", DIGEST))),
        (f"{OURS}/a:v1", Place(account="123456789012", region=REGION, repository="a", identity=("imageTag", "v1"))),
        ("918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn/eks/p:v1",
         Place(account="918309763551", region="cn-north-1", repository="eks/p", identity=("imageTag", "v1"))),
        (f"123456789012.dkr-ecr.{REGION}.on.aws/a",
         Place(account="123456789012", region=REGION, repository="a", identity=("imageTag", "latest"))),
        ("registry.k8s.io/pause:3.9", None),
        ("alpine:3", None),
        (f"{OURS}.example/a:v1", None),
    ],
)  # fmt: skip
def test_a_reference_tells_where_its_image_is(reference: str, place: Place | None) -> None:
    assert place_of(reference) == place


def test_images_that_are_there_pass_by_digest_and_by_tag(cloud: Cloud) -> None:
    digest = pushed(cloud)
    found = report(cloud, image(f"{OURS}/team/trainer@{digest}"), image(f"{OURS}/team/trainer:v1", "debug"))
    assert (found.problems, found.unasked, found.checked) == ([], [], 1)


@pytest.mark.parametrize(
    "path", [f"team/trainer@{DIGEST}", "team/trainer:v2", f"team/other@{DIGEST}", f"a@{DIGEST}"]
)
def test_an_image_that_is_missing_is_named_by_its_key(cloud: Cloud, path: str) -> None:
    pushed(cloud)
    found = report(cloud, image(f"{OURS}/{path}"))
    only(
        [str(p) for p in found.problems],
        KEY,
        f"'{OURS}/{path}' is not in this account's registry in {REGION}",
    )
    assert found.unasked == []


def test_images_of_other_registries_are_said_to_be_unasked_in_one_line(cloud: Cloud) -> None:
    others = {
        "trainer": f"999999999999.dkr.ecr.{REGION}.amazonaws.com/trainer@{DIGEST}",
        "launcher": f"123456789012.dkr.ecr.eu-west-1.amazonaws.com/launcher@{DIGEST}",
        "placeholder": f"registry.k8s.io/pause@{DIGEST}",
    }
    found = report(cloud, *(image(reference, name) for name, reference in others.items()))
    assert found.problems == []
    line = only([str(each) for each in found.unasked], "trainyard:images", "can't be asked", f"in {REGION}")
    assert line.endswith(
        f": trainer (999999999999.dkr.ecr.{REGION}.amazonaws.com),"
        " launcher (123456789012.dkr.ecr.eu-west-1.amazonaws.com), placeholder (registry.k8s.io)"
    )


def test_a_missing_permission_is_named(cloud: Cloud) -> None:
    found = report(cloud, image(f"{OURS}/trainer@{DIGEST}"), credentials=cloud.session("nobody"))
    assert found.not_checked == [("container images", "ecr:DescribeImages")]
