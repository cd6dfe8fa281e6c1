"""The job of `cassi-reconstruct`: write a cube, pictures and numbers for each measurement."""

from cassi.apps.command import (
    Run,
    choose_device,
    prepare_process,
    refuse_torchrun,
)
from cassi.apps.folders import lock_folder_exclusively
from cassi.apps.reconstruct.journal import Passes, forget_passes
from cassi.apps.reconstruct.snapshots import is_many
from cassi.apps.reconstructors import Recipe
from cassi.apps.results import format_estimates, format_result, summarize, summarize_calibration
from cassi.apps.settings import Reconstruct
from cassi.apps.snapshot import (
    choose_judge_options,
    make_recipe,
    prepare,
    print_findings,
    reconstruct_and_judge,
    write_results,
)


def show(settings: Reconstruct, run: Run, output_folder: str) -> float:
    """Print what the command would do, its time and its memory; write nothing."""
    from cassi.apps.reconstruct.info import describe

    device = choose_device(settings.device)
    prepare_process(settings, blocks=settings.memory_budget is not None)
    print(*describe(settings, Recipe(settings, device), output_folder), sep="\n")
    return 0.0


def reconstruct(settings: Reconstruct, run: Run) -> float:
    """Reconstruct what the settings name and write the results.

    Returns:
        The relative residual, for sweeps that minimise something. For many snapshots, the mean of
        their relative residuals.

    Raises:
        ValueError: settings, files and camera do not fit each other.
        SystemExit: with status 1, if some of many snapshots failed.
    """
    blocks = settings.memory_budget is not None
    prepare_process(settings, blocks=blocks)
    refuse_torchrun()
    has_many_snapshots = is_many(settings.measurement)
    _check_one_or_many(settings, has_many_snapshots)
    # Several commands may share many snapshots and write into one folder. With one snapshot, a
    # second command in the same folder would overwrite the results of the first.
    if not has_many_snapshots:
        lock_folder_exclusively(run.folder)
    if has_many_snapshots or blocks:
        from cassi.apps.executors import open_workers
        from cassi.apps.reconstruct.blocks import reconstruct_in_blocks
        from cassi.apps.reconstruct.many import reconstruct_many

        with open_workers(settings, blocks=blocks, in_order=settings.sequence) as workers:
            if has_many_snapshots:
                return reconstruct_many(settings, run, workers)
            return reconstruct_in_blocks(settings, run.folder, workers)
    recipe = make_recipe(settings)
    snapshot, reconstructor = prepare(settings, recipe)
    for note in snapshot.notes:
        print(note)
    if snapshot.camera.calibration is not None:
        print(format_estimates(summarize_calibration(snapshot.camera.calibration)))
    result = reconstruct_and_judge(
        snapshot,
        reconstructor,
        settings.seed,
        show_progress=settings.output.progress,
        options=choose_judge_options(settings),
        passes=Passes(run.folder, settings, snapshot),
    )
    numbers = summarize(result)
    write_results(run.folder, settings, result, numbers)
    # The passes are removed only now. If this command were stopped while it writes the results, the
    # next command would need the last pass.
    forget_passes(run.folder)
    print(format_result(numbers), f"-> {run.folder}", sep="\n")
    print_findings(numbers)
    return float(numbers["relative_residual"])


def _check_one_or_many(settings: Reconstruct, has_many: bool) -> None:
    """Raise ValueError for a setting that is for one snapshot alone, or for many alone."""
    if has_many and settings.guide.file is not None:
        raise ValueError("guide: expected null for many snapshots, a guide shows one scene")
    if has_many and settings.calibrate:
        raise ValueError(
            "calibrate: expected false for many snapshots, which share one camera; run "
            "cassi-calibrate 'measurement=[FILE,FILE]', and give the camera that it writes: "
            "camera=DIR/camera.yaml"
        )
    if not has_many and settings.sequence:
        raise ValueError("sequence: expected false for one snapshot; give a folder of them")
    if not has_many and settings.share is not None:
        raise ValueError("share: expected null for one snapshot, which one command computes")
