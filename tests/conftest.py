"""Fixtures that several folders share."""

import functools
import gc
import os
import pickle
import shutil
from pathlib import Path

import pytest

# Tests that take long, by folder: more than a second or two on an idle machine, with all of their
# parameters. `make test-fast` leaves them out, with those that are marked where they stand.
SLOW = {
    "": """
        calibrate_gives_the_camera_of_the_command every_file_composes_and_builds import_is_cheap
        solvers_run_with_priors
    """,
    "apps": """
        a_closed_pipe_ends_quietly a_config_says_what_options_say a_file_that_is_none
        a_killed_run_goes_on a_killed_run_loses_the_scene_in_hand_only a_multirun_makes_one_table
        a_snapshot_calibrates_its_own_camera all_commands_and_python_take_it
        all_ten_scenes_are_evaluated an_interrupt_ends_a_process_in_a_line
        an_interrupt_ends_a_process_in_one_line other_cameras_run each_method_has_three_rows
        end_to_end evaluation_tables_bars every_benchmark_makes_its_reconstructors_and_cases
        every_file_composes_and_builds every_network_is_an_option
        every_noise_in_a_simulated_measurement every_recipe_composes_and_builds
        every_recipe_makes_a_step files_that_are_not_those_of_the_data_set
        kill_and_resume_is_as_if_nothing_had_happened known_light_gives_gain_and_mask
        only_what_changed_is_done_again refusals
        two_processes_give_the_bytes_of_one two_processes_give_the_gradient_of_one
        two_tabs_are_apart_and_everything_has_a_name
        what_is_damaged_or_of_another_run_is_computed_again writes_a_camera_that_reconstructs
        wrong_values
    """,
    "calibration": "nothing_is_found_where_nothing_is_wrong shift_and_step_are_found",
    "examples": """
        calibration_finds_the_shift it_runs
    """,
    "models": """
        a_list_without_buffers_beside_it_is_refused channels_last_changes_nothing
        checkpointing_changes_no_gradient compiles_as_one_graph equals_the_authors_code
        every_network_takes_any_camera every_parameter_gets_a_finite_gradient
        gives_a_cube_for_any_size_and_dispersion one_graph plain_weights
        settings_and_names_are_checked the_authors_form_of_every_network_gives_the_same_bits
        the_large_one_goes_on_with_a_denoiser the_moving_average_is_preferred
        the_network_that_would_fit_is_named trains_in_bfloat16_and_channels_last
        what_only_the_training_of_a_network_needs_is_left_out which_operator_loses_channels_last
    """,
    "ops": """
        compiles_whole geometry_of_row_sums huge_calls_fail_softly larger_than_the_caches layouts
        memory_is_kept_for_the_next_large_result_but_not_under_a_budget opcheck
    """,
    "systems": """
        compiles_whole one_rho_per_detector_pixel
        one_value_spread_over_all_pixels_gives_the_same_bits
    """,
    "viz": """
        a_comparison_takes_extreme_shapes_and_black every_figure_is_a_picture_of_something
    """,
}


def pytest_collection_modifyitems(items):
    """Mark what takes long, and let files of long tests come first: the last ones are short.

    What CI leaves out, `make test` does too.
    """
    tests = Path(__file__).parent
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.release)
        if tests in item.path.parents:
            folder, *rest = item.path.relative_to(tests).parts
            name = getattr(item, "originalname", item.name).removeprefix("test_")
            if name in SLOW.get(folder if rest else "", "").split():
                item.add_marker(pytest.mark.slow)
    long = {item.path for item in items if item.get_closest_marker("release")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish():
    """Let the collector of cycles pass over what stays: torch, and thousands of tests."""
    gc.freeze()
    gc.set_threshold(100_000)


PACKAGED = ("pkg://hydra.conf", "pkg://cassi.conf", "structured://", "cassi-parts://")
"""Where configs of the package come from; the last ones differ by what plugins register."""


@pytest.fixture(scope="session", autouse=True)
def _configs_read_once():
    """Read each config file of the package, and parse each value, once for all commands.

    The files that a command chooses of the package are composed once too.
    """
    import omegaconf.base
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins

    Plugins.instance()  # registers the sources
    kind, kept = SourcesRegistry.instance().resolve("pkg"), {}
    read = kind._read_config

    def read_once(source, file):
        key = source.provider, str(file)
        if key not in kept:
            kept[key] = pickle.dumps(read(source, file))
        return pickle.loads(kept[key])  # what composes it changes it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "_read_config", read_once)
        patch.setattr("omegaconf.base.parse", functools.cache(omegaconf.base.parse))
        _compose_files_once(patch)
        yield


def _compose_files_once(patch):
    """Let Hydra keep the lists of files that options choose, and what they compose to.

    The values of the options come after that. A part is registered, so it is read each time and
    must be what it was; with files of the user nothing is kept.
    """
    from hydra._internal import config_loader_impl as hydra
    from hydra._internal.defaults_list import Overrides

    loader, kept = hydra.ConfigLoaderImpl, {}
    choose, compose = hydra.create_defaults_list, loader._compose_config_from_defaults_list

    def is_part(found):
        return found.path == PACKAGED[-1]

    def text(repo, part):
        found = repo.load_config(part)
        return found and f"{found.path} {found.config} {found.defaults_list}"

    def once(key, repo, make, defaults_of):
        if not all(each.full_path() in PACKAGED for each in repo.get_sources()):
            return make()
        made, parts = kept.get(key, (None, {}))
        if made is None or any(text(repo, part) != before for part, before in parts.items()):
            made = make()
            files = {each.config_path for each in defaults_of(made)}
            parts = {file: text(repo, file) for file in files if is_part(repo.load_config(file))}
            kept[key] = (made := pickle.dumps(made)), parts
        return pickle.loads(made)

    def choose_once(repo, config_name, overrides_list, **flags):
        values = Overrides(repo, overrides_list).config_overrides

        def choose_files():
            found = choose(repo, config_name, overrides_list, **flags)
            found.config_overrides = found.overrides.config_overrides = []
            return found

        groups = [each.input_line for each in overrides_list if not any(each is v for v in values)]
        key = ("list", config_name, *groups, *flags.items())
        found = once(key, repo, choose_files, lambda made: made.defaults)
        found.config_overrides = found.overrides.config_overrides = values
        return found

    def compose_once(self, defaults, repo):
        return once(repr(defaults), repo, lambda: compose(self, defaults, repo), lambda _: defaults)

    patch.setattr(hydra, "create_defaults_list", choose_once)
    patch.setattr(loader, "_compose_config_from_defaults_list", compose_once)


@pytest.fixture(autouse=True)
def _seed():
    """Draw the same numbers in every run: a gradient at a kink is no failure of the code."""
    import torch  # not by what hands out the tests

    torch.default_generator.manual_seed(0)
    torch.cuda.manual_seed_all(0)  # where there is one


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
    import torch

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
