"""What the rules of Helm charts must reject and accept."""

from __future__ import annotations

from tests.unit.policies.building import Cases, made
from trainyard.policies import kubernetes as k

CASES: dict[str, Cases] = {
    "chart-pinned": Cases(
        rejects=[
            made(k.RELEASE, chart="oci://public.ecr.aws/karpenter/karpenter"),
            made(k.RELEASE, chart="oci://public.ecr.aws/karpenter/karpenter", version=">=1.0.0"),
            made(k.RELEASE, chart="a", repositoryOpts={"repo": "https://charts.example"}, version="1.x"),
        ],
        accepts=[
            made(k.RELEASE, chart="oci://public.ecr.aws/karpenter/karpenter", version="1.14.1"),
            made(k.RELEASE, chart="/charts/karpenter"),
        ],
    ),
    "chart-images-by-digest": Cases(
        rejects=[
            made(k.RELEASE, values={"controller": {"image": {"repository": "a", "tag": "v1"}}}),
            # It takes the chart's digest away.
            made(k.RELEASE, values={"controller": {"image": {"repository": "a", "digest": ""}}}),
        ],
        accepts=[
            made(
                k.RELEASE,
                values={"controller": {"image": {"repository": "a", "tag": "v1", "digest": "sha256:0"}}},
            ),
            made(k.RELEASE, values={"controller": {"image": {"repository": "mirror/a"}}}),
            made(k.RELEASE, values={"replicas": 2}),
        ],
    ),
}
