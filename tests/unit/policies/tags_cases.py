"""Fixtures of the rule for tags."""

from __future__ import annotations

import json
from typing import Any

from components.documents.eks import cni_values
from tests.unit.policies.building import Cases, made
from trainyard.policies import tags as t
from trainyard.policies.model import Resource

MARKS = {"trainyard:project": "trainyard", "trainyard:stack": "dev"}
TAGS = {**MARKS, "team": "ml"}
BUCKET = "aws:s3/bucket:Bucket"
OTHER = made(BUCKET, "other", tags={**TAGS, "Name": "other", "kubernetes.io/role/elb": "1"})


def tagged(tags: Any, type_: str = BUCKET, **more: Any) -> tuple[Resource, Resource]:
    return made(type_, tags=tags, **more), OTHER


def template(*parts: str, tags: dict[str, str] = TAGS) -> tuple[Resource, Resource]:
    return tagged(
        TAGS, t.TEMPLATE, tagSpecifications=[{"resourceType": part, "tags": tags} for part in parts]
    )


def addon(name: str, values: object) -> tuple[Resource, Resource]:
    text = values if isinstance(values, str) else json.dumps(values)
    return tagged(TAGS, t.ADDON, addonName=name, configurationValues=text)


CASES: dict[str, Cases] = {
    "tags-complete": Cases(
        rejects=[
            made(BUCKET),
            made(BUCKET, tags={"team": "ml"}),
            tagged(MARKS),
            tagged({**TAGS, "trainyard:stack": "another"}),
            tagged(MARKS, "aws:ec2/vpc:Vpc"),
            (made(t.NODE_CLASS, spec={"tags": MARKS}), OTHER),
            (made(t.NODE_CLASS, spec={}), OTHER),
            tagged(TAGS, t.TEMPLATE),
            template("instance", "volume"),
            template(*t.INSTANCE_PARTS, tags=MARKS),
            addon("aws-ebs-csi-driver", {}),
            addon("aws-ebs-csi-driver", {"controller": {"extraVolumeTags": MARKS}}),
            addon("vpc-cni", cni_values({})),
        ],
        accepts=[
            made(BUCKET, tags=MARKS),
            tagged(TAGS),
            tagged({**TAGS, "Name": "it", "karpenter.sh/discovery": "dev"}),
            (made(t.NODE_CLASS, spec={"tags": TAGS}), OTHER),
            template(*t.INSTANCE_PARTS),
            addon("aws-ebs-csi-driver", {"controller": {"extraVolumeTags": TAGS}}),
            addon("vpc-cni", cni_values(TAGS)),
            addon("coredns", ""),
        ],
    ),
}
