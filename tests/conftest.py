"""Fixtures that several folders share."""

import os
import shutil
from pathlib import Path

import pytest
import torch

# Tests that take long, by folder: each alone more than a second or two on an idle machine, or many
# parameters. `make test-fast` leaves them out, with those that are marked where they stand.
SLOW = {
    "": """
        import_is_cheap
    """,
    "apps": """
        a_damaged_checkpoint_gives_way_to_the_one_before a_file_that_cannot_grow
        a_folder_that_holds_a_training_is_not_overwritten a_killed_run_goes_on
        a_killed_run_loses_the_scene_in_hand_only a_multirun_makes_one_table
        a_network_takes_them_together a_second_run_deletes_nothing_and_names_its_files
        all_commands_and_python_take_it all_ten_scenes_are_evaluated
        an_exported_network_recovers_a_scene any_network_may_be_refined
        camera_experiments_run default_reaches_the_best_public_gap_tv
        each_is_as_if_it_were_the_only_one each_method_has_three_rows end_to_end
        every_file_composes_and_builds every_network_is_an_option
        every_noise_in_a_simulated_measurement every_recipe_composes_and_builds
        hot_pixels_of_a_simulated_frame_are_left_out
        kill_and_resume_is_as_if_nothing_had_happened known_light_gives_gain_and_mask
        measurement_is_simulated_from_the_truth nothing_to_reconstruct points_can_be_given
        random_kills_lose_nothing refusals refused_in_one_line scenes_that_teach_nothing
        signals_end_a_command_in_one_line signals_end_in_a_line
        sweep_runs_every_job_and_reports_the_failed_one
        the_benchmark_finds_nothing_lost_and_the_same_bits the_chain_undoes_a_sensor
        the_cube_does_not_depend_on_the_number_of_threads
        the_weights_of_the_package_need_no_file training_goes_on_from_exported_weights
        two_processes_give_the_bytes_of_one two_processes_give_the_gradient_of_one
        what_is_no_checkpoint what_loses_channels_last_is_named
        what_results_depend_on_decides_what_is_done_again
        without_truth_there_are_no_metrics writes_every_file wrong_values
    """,
    "calibration": """
        a_camera_between_pixels_is_found a_shift_is_found_and_nothing_else
        errors_are_those_of_repeated_measurements finds_each_parameter
        nothing_is_found_where_nothing_is_wrong the_search_leads_to_the_true_place
    """,
    "data": """
        data_that_expand_further_than_claimed real_splits
    """,
    "models": """
        a_list_without_buffers_beside_it_is_refused beats_total_variation_with_a_mask_never_seen
        channels_last_changes_nothing checkpointing_changes_no_gradient compiles_as_one_graph
        counters_of_batches_may_lack
        dispersion_along_rows_is_that_along_columns_of_the_turned_scene equals_the_authors_code
        every_network_takes_any_camera every_parameter_gets_a_finite_gradient
        gives_a_cube_for_any_size_and_dispersion one_graph
        parameters_and_operations_are_those_of_the_authors_code parameters_are_as_published
        plain_weights refuses_cameras_and_measurements_that_do_not_fit
        safetensors_and_files_of_cassi_train settings_and_names_are_checked
        takes_a_mask_per_band_and_per_sample the_authors_form_of_every_network_gives_the_same_bits
        the_large_one_goes_on_with_a_denoiser_unless_there_is_noise
        the_moving_average_is_preferred the_network_that_would_fit_is_named
        trains_in_bfloat16_and_channels_last
    """,
    "ops": """
        compiles_whole geometry_of_row_sums larger_than_the_caches layouts masks mixed_dtypes
        other_instruction_sets
    """,
    "viz": """
        a_comparison_is_written_as_png_and_pdf a_comparison_takes_extreme_shapes_and_black
        ten_scenes_with_four_methods_stay_below_fifteen_megabytes
    """,
}


def pytest_collection_modifyitems(items):
    """Mark what takes long."""
    tests = Path(__file__).parent
    for item in items:
        if tests in item.path.parents:
            folder, *rest = item.path.relative_to(tests).parts
            name = getattr(item, "originalname", item.name).removeprefix("test_")
            if name in SLOW.get(folder if rest else "", "").split():
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def data_dir():
    """The folder of real data, or a skip that says where it was looked for."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("CASSI_DATA") or root.parent / "shared" / "data")
    if not (folder / "tsa" / "mask.mat").exists():
        pytest.skip(f"no real data in {folder}; set CASSI_DATA")
    return folder


@pytest.fixture
def assert_same_bits():
    """Check that a function returns the same bits in every run and for any number of threads."""

    def check(run):
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            first = list(run())
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True)), threads
        finally:
            torch.set_num_threads(before)

    return check


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, or a skip that says what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"none of {', '.join(names)} is installed")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def open_tab(browser):
    """Opens tabs; at the end nothing may have been said on a console or asked of a network."""
    complaints = []
    tabs = []

    def open_tab(address, *own, harmless=(), **options):
        """Open an address; `own` is how other addresses begin that may be asked."""
        allowed = (*own, "data:", "blob:")

        def heard(words):
            if not any(each in words for each in harmless):
                complaints.append(words)

        def asked(url):
            if not url.startswith(allowed):
                complaints.append(url)

        tab = browser.new_page(**options)
        tabs.append(tab)
        tab.on("console", lambda said: heard(f"{said.type}: {said.text}"))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: asked(request.url))
        tab.goto(address)
        return tab

    yield open_tab
    for tab in tabs:
        tab.close()
    assert complaints == []
