"""What the tests of faults share. Training takes seconds, so what one run left serves many."""

import helpers
import pytest

from faults import jobs


@pytest.fixture(scope="package", autouse=True)
def plain_graphs():
    """The commands import TensorFlow only when they run."""
    helpers.use_plain_graphs()


@pytest.fixture
def job(tmp_path):
    """Flags of a tiny pretraining run into tmp_path/out."""
    return jobs.pretraining_flags(tmp_path)


@pytest.fixture(scope="package")
def whole(plain_graphs, tmp_path_factory) -> jobs.Run:
    """A run to its end, step 23, undisturbed; saved and evaluated at 10, 20 and 23."""
    folder = tmp_path_factory.mktemp("whole")
    flags = [*jobs.pretraining_flags(folder, keep_checkpoint_max=0), "--skip_loss_spikes"]
    assert jobs.pretrain(*flags, "--do_eval") == 0
    return jobs.Run(folder / "out", flags)


@pytest.fixture
def finished(whole, tmp_path) -> jobs.Run:
    """A copy of that run."""
    return whole.copy(tmp_path / "out")


@pytest.fixture
def begun(whole, tmp_path) -> jobs.Run:
    """A copy of that run as it was when it had just saved step 10, not yet evaluated."""
    return whole.copy(tmp_path / "out", step=10)


@pytest.fixture(scope="package")
def classified(plain_graphs, tmp_path_factory) -> jobs.Run:
    """A classifier trained to its end, step 6, and evaluated."""
    folder = tmp_path_factory.mktemp("classified")
    flags = jobs.classifier_flags(folder)
    assert jobs.classify(*flags, "--do_train", "--do_eval") == 0
    return jobs.Run(folder / "out", flags)
