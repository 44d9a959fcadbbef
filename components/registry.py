"""The images of launcher and trainer: repositories and builds, or existing images."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pulumi
import pulumi_aws as aws
import pulumi_docker_build as docker

from .documents.images import context_digest

KEPT_IMAGES: Final = 30
LIFECYCLE: Final = {
    "rules": [
        {
            "rulePriority": 1,
            "description": f"Keep the newest {KEPT_IMAGES} images",
            "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": KEPT_IMAGES},
            "action": {"type": "expire"},
        }
    ]
}


@dataclass(frozen=True, kw_only=True)
class ImagesArgs:
    """Images to build or to use.

    Builds need a Docker that is logged in to ECR, for example by the ECR credential helper
    (https://github.com/awslabs/amazon-ecr-credential-helper). The program asks the account for no tokens.
    """

    prefix: str
    """The first part of the repositories' names."""
    root: Path
    """The directory of the sources: an image is built from `<name>/Dockerfile` in it."""
    names: tuple[str, ...]
    """The names of the images."""
    existing: dict[str, str]
    """The URIs of images that are not built, by name."""
    key_arn: pulumi.Input[str]
    """The key that encrypts the repositories."""
    protect: bool
    """Whether Pulumi protects repositories and images. If not, a repository is deleted with its images."""
    tags: dict[str, str]
    arguments: dict[str, dict[str, str]] = field(default_factory=dict)
    """Arguments of the Dockerfiles, by image. An image's history shows them, so they must hold no credentials."""
    targets: dict[str, str] = field(default_factory=dict)
    """The build stage (`target`), by image; by default the last one."""


class Images(pulumi.ComponentResource):
    """The container images of a stack, built or existing.

    Creates, for each image in `names` that is not in `existing`:

    - an ECR repository with immutable tags and scan on push. It is encrypted with `key_arn` and keeps the newest
      thirty images;
    - the built image. Its tag is the digest of its build context.
    """

    def __init__(self, name: str, args: ImagesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:registry:Images", name, None, opts)
        self._args = args
        # Also protect the build: a new resource would push to an existing tag, and tags are immutable.
        self._protected = pulumi.ResourceOptions(parent=self, protect=args.protect)
        self.uris: dict[str, pulumi.Output[str]] = {}
        """The URI of each image, by name."""
        self.repository_urls: dict[str, pulumi.Output[str]] = {}
        """The repository of each image that is built, by name."""
        for image in args.names:
            existing = args.existing.get(image)
            if existing is not None:
                self.uris[image] = pulumi.Output.from_input(existing)
                continue
            repository = self._repository(image)
            self.repository_urls[image] = repository.repository_url
            self.uris[image] = self._build(image, repository)
        self.register_outputs({"uris": self.uris, "repositoryUrls": self.repository_urls})

    def _repository(self, image: str) -> aws.ecr.Repository:
        repository = aws.ecr.Repository(
            f"{self._args.prefix}-{image}",
            name=f"{self._args.prefix}/{image}",
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration={"scan_on_push": True},
            encryption_configurations=[{"encryption_type": "KMS", "kms_key": self._args.key_arn}],
            force_delete=not self._args.protect,
            tags=self._args.tags,
            opts=self._protected,
        )
        aws.ecr.LifecyclePolicy(
            f"{self._args.prefix}-{image}",
            repository=repository.name,
            policy=json.dumps(LIFECYCLE),
            opts=self._protected,
        )
        return repository

    def _build(self, image: str, repository: aws.ecr.Repository) -> pulumi.Output[str]:
        dockerfile = f"{image}/Dockerfile"
        arguments, target = self._args.arguments.get(image, {}), self._args.targets.get(image)
        tag = context_digest(self._args.root, self._args.root / dockerfile)
        if arguments or target:
            # This is a different image, and tags are immutable.
            content = json.dumps([tag, arguments, target], sort_keys=True)
            tag = hashlib.sha256(content.encode()).hexdigest()[: len(tag)]
        built = docker.Image(
            f"{self._args.prefix}-{image}",
            # The engine starts plugins in the program's directory. With an absolute path, another checkout with the
            # same content would differ and push its build to the existing immutable tag, which ECR refuses.
            context=docker.BuildContextArgs(location="."),
            dockerfile=docker.DockerfileArgs(location=dockerfile),
            build_args=arguments or None,
            target=target,
            platforms=[docker.Platform.LINUX_AMD64],
            tags=[repository.repository_url.apply(lambda url: f"{url}:{tag}")],
            build_on_preview=False,
            push=True,
            opts=self._protected,
        )
        ref: pulumi.Output[str] = built.ref
        return ref
