"""The run that the stack starts."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from .documents.launch import Resolved, Run, job_spec, labels, manifest


@dataclass(frozen=True, kw_only=True)
class LauncherJobArgs:
    """The run and its images."""

    run: Run
    """The run (`documents.launch.Run`)."""
    launcher_image: pulumi.Input[str]
    """The launcher's image."""
    trainer_image: pulumi.Input[str]
    """The image of workers."""
    placeholder_image: str
    """A pause image for the pods that hold nodes."""
    model_uri: pulumi.Input[str]
    """Where models are stored, such as s3://bucket/models."""
    checkpoint_uri: pulumi.Input[str | None]
    """Where the run stores its checkpoints; None for no checkpoints."""
    after: list[pulumi.Resource]


class LauncherJob(pulumi.ComponentResource):
    """The Job that starts the stack's run.

    Creates the Job `launch-<runId>`, if the settings name a run. `up` does not wait for its end.

    Later changes of the settings do not change the Job of a started run: another image or maximum would otherwise
    replace the Job and end its training. Another `runId` adds another Job. The earlier Job stays in the cluster
    with its training and its logs, but no longer in the stack's state. The drain deletes all of them on `destroy`.
    Each `runId` can be used once: the API server reports that the Job exists if an earlier one is used again.

    `manifest` is the Job of a further run, for `kubectl create -f -`.
    """

    job_name: str | None
    """The name of the Job; None without a run name."""
    manifest: pulumi.Output[str]
    """The Job as JSON."""

    def __init__(self, name: str, args: LauncherJobArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:training:LauncherJob", name, None, opts)

        resolved = pulumi.Output.all(
            launcher_image=args.launcher_image,
            trainer_image=args.trainer_image,
            model_uri=args.model_uri,
            checkpoint_uri=args.checkpoint_uri,
        ).apply(lambda values: Resolved(placeholder_image=args.placeholder_image, **values))
        self.job_name = None
        self.job: k8s.batch.v1.Job | None = None
        """The Job; None without a run name."""
        if args.run.run_id is not None:
            self.job_name = f"{names.LAUNCHER_JOB_PREFIX}{args.run.run_id}"
            self.job = k8s.batch.v1.Job(
                self.job_name,
                metadata={
                    "name": self.job_name,
                    "namespace": names.TRAINING_NAMESPACE,
                    "labels": labels(args.run.run_id),
                    "annotations": {"pulumi.com/skipAwait": "true"},
                },
                spec=resolved.apply(lambda r: job_spec(args.run, r)),
                opts=pulumi.ResourceOptions(
                    parent=self,
                    depends_on=args.after,
                    ignore_changes=["spec", "metadata"],
                    retain_on_delete=True,
                ),
            )
        self.manifest = resolved.apply(lambda r: manifest(args.run, r))
        self.register_outputs({"jobName": self.job_name, "manifest": self.manifest})
