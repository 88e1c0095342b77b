"""Data sets as parts: what all of them share, and the three that read files or scikit-learn."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import datasets

from nitro_cli import ArrayBatches, Dist, Experiment, Nitro, Prefetch, check_batch_at
from nitro_cli.data.sets import Arrays, Crop, DataSet, Mnist, Shift, Sklearn, register_augment, register_data
from nitro_cli.data.sets.augment import Augment
from nitro_cli.data.sets.data_set import DATA_SETS
from nitro_cli.data.splits import GroupSplit, SplitPlan, StratifiedSplit
from nitro_cli.errors import ConfigError, DataError, NotFoundError
from nitro_cli.experiment import Declared
from nitro_cli.tasks import Categorical, Regression, Task

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 6, 5, 1), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.int32) % 4


class Net(Experiment):
    """A linear model of whatever field the data set declares, as wide as the task says."""

    data: DataSet = Sklearn("iris", standardize=True)
    split: SplitPlan | None = None
    task: Task = Categorical()
    field: str = "x"
    columns: int = 4
    width: int = 3
    logger = None
    checkpointer = None
    learning_rate = 1e-2

    def build_model(self, rng):
        params = {"kernel": 0.1 * jax.random.normal(rng, (self.columns, self.width)), "bias": jnp.zeros(self.width)}
        return lambda p, s, x, *, train, key: (x @ p["kernel"] + p["bias"], s), params, {}

    def forward(self, model, params, state, *, x=None, image=None):
        given = x if image is None else image
        return model(params, state, given.reshape(given.shape[0], -1))


@register_data("test_images")
class Made(DataSet):
    """Forty images of four classes, 32 to train on."""

    wrapped: bool = False

    def build(self, dist, split, seed):
        arrays = {"image": IMAGES, "label": LABELS}
        splits = {"train": (arrays, np.arange(32)), "val": (arrays, np.arange(32, 40))}
        built = self.batched(splits, Declared(("image",), "label", tuple("abcd"), 4), "sha256:made")
        if self.wrapped:
            built["train"] = Prefetch(built["train"], workers=3)
        return built


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def weights(e):
    handle = Nitro(e).train()
    return {name: np.asarray(value) for name, value in handle.params.items()}


def built(data, split=None, seed=0):
    return data.build(Dist(), split, seed)


# What all sets share


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "8"])
@pytest.mark.parametrize("name", ["batch_size", "eval_batch_size"])
def test_a_batch_size_that_is_none_is_refused_before_a_file_is_opened(name, value):
    with pytest.raises(ConfigError, match=rf"data\.{name}"):
        Net(data={"kind": "mnist", "folder": "/no/such/folder", name: value})


@pytest.mark.parametrize(("words", "size"), [({"batch_size": "full"}, 105), ({"batch_size": 1000}, 105), ({}, 64)])
def test_full_and_a_size_above_the_split_are_the_whole_split(words, size):
    found = built(Sklearn("iris", **words))
    assert found["train"].batch_size == size
    handle = Nitro(Net(data=Sklearn("iris", **words))).train()
    (row,) = handle.plan.report.as_json()["parts"]
    assert (row["part"], row["rows"]) == ("data", "{'train': 105, 'val': 24, 'test': 21}")
    assert ("updates per epoch" in row) is (size == 105)
    assert handle.step == (1 if size == 105 else 2)


def test_evaluation_may_have_a_batch_size_of_its_own_and_only_training_is_shuffled():
    found = built(Sklearn("wine", batch_size=8, eval_batch_size="full"))
    assert [found[name].batch_size for name in ("train", "val", "test")] == [
        8,
        found["val"].samples,
        found["test"].samples,
    ]
    assert [found[name].shuffle for name in ("train", "val", "test")] == [True, False, False]
    assert not built(Sklearn("wine", shuffle=False))["train"].shuffle


def test_a_limit_takes_rows_of_every_class_from_each_split_and_changes_no_identity():
    whole, cut = built(Sklearn("iris")), built(Sklearn("iris", limit=20))
    assert [cut[name].samples for name in cut] == [20, 20, 20]
    assert set(cut["train"].selected()["label"]) == {0, 1, 2}
    assert cut.content == whole.content
    assert cut.declared == whole.declared


def test_the_split_of_the_experiment_reaches_the_set_and_default_is_stratified():
    default = built(Sklearn("iris"))
    labels = datasets.load_iris().target
    applied = StratifiedSplit(seed=0).apply(labels=labels, source=default.content)
    np.testing.assert_array_equal(default["val"].rows, applied["val"])
    handle = Nitro(Net(split=StratifiedSplit(proportions=(0.5, 0.5, 0), seed=3)))
    assert {name: split.source.samples for name, split in handle.plan.splits.items()} == {"train": 75, "val": 75}
    # A plan without a seed follows the run's.
    free, fixed = StratifiedSplit(), StratifiedSplit(seed=9)
    np.testing.assert_array_equal(
        built(Sklearn("iris"), free, 9)["test"].rows, built(Sklearn("iris"), fixed)["test"].rows
    )


def test_a_plan_that_does_not_go_with_the_set_is_refused():
    with pytest.raises(ConfigError, match="splits of its own"):
        built(Mnist(), StratifiedSplit())
    with pytest.raises(ConfigError, match="no column 'customer'"):
        built(Sklearn("iris"), GroupSplit(by="customer", seed=0))


def test_content_that_is_written_down_is_compared():
    content = built(Sklearn("iris")).content
    Nitro(Net(data=Sklearn("iris", content=content)))
    with pytest.raises(ConfigError, match=content):
        Nitro(Net(data=Sklearn("iris", content="sha256:0")))


def test_what_the_task_leaves_open_is_filled_from_the_set_and_what_it_states_is_compared():
    handle = Nitro(Net())
    assert handle.experiment.task.labels == ("setosa", "versicolor", "virginica")
    assert (handle.experiment.task.num_classes, handle.experiment.task.target) == (3, "label")
    with pytest.raises(ConfigError, match="4"):
        Nitro(Net(task=Categorical(4)))


# From a batch to what forward takes


def test_bytes_become_0_to_1_in_evaluation_and_in_the_exported_program():
    handle = Nitro(Net(data=Made(), field="image", columns=30, width=4)).train()
    expected = (IMAGES[:3].reshape(3, -1) / np.float32(255)) @ handle.params["kernel"] + handle.params["bias"]
    np.testing.assert_allclose(handle.predict({"image": IMAGES[:3]}), expected, rtol=1e-5, atol=1e-6)


def test_normalize_takes_mean_and_deviation_of_each_channel():
    x = np.arange(2 * 3 * 3 * 2, dtype=np.float32).reshape(2, 3, 3, 2)
    data = Made(normalize=((1, 2), (2, 4)))
    (name, found), *_ = data.prepare({"image": x}, False, None).items()
    assert name == "image"
    np.testing.assert_allclose(found, (x - [1, 2]) / [2, 4])
    one = Made(normalize=((0,), (16,))).prepare({"image": x, "ids": np.zeros((2, 3), np.int32)}, False, None)
    assert one.keys() == {"image"}
    np.testing.assert_allclose(one["image"], x / 16)


def test_a_set_that_changes_nothing_prepares_nothing():
    assert (
        Made().prepare({"x": np.zeros((2, 3), np.float32), "n": np.zeros(2, np.int32)}, True, jax.random.key(0)) == {}
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Made(normalize=((0, 0, 0), (1, 1, 1))), r"data\.normalize has 3 channels.*image float32\[6, 5, 1\]"),
        (Made(augment=(Shift(5),)), r"data\.augment needs images .* of 6 pixels"),
        (Made(standardize=True), r"data\.standardize needs one field of columns"),
        (Sklearn("iris", augment=("flip",)), r"data\.augment needs images"),
    ],
)
def test_a_preparation_that_nothing_goes_with_is_refused(data, told):
    e = Net(data=data) if isinstance(data, Sklearn) else Net(data=data, columns=30, width=4)
    with pytest.raises(ConfigError, match=told):
        Nitro(e)


@pytest.mark.parametrize("value", [[[0.0], [0.0]], [[0.0, 1.0], [1.0]], [[], []], [[float("inf")], [1.0]]])
def test_a_normalize_that_cannot_be_is_refused_where_it_is_written(value):
    with pytest.raises(ConfigError, match="normalize"):
        Made(normalize=value)


def test_flip_mirrors_about_half_of_the_rows_each_by_a_key_of_its_own():
    image = jnp.arange(30.0).reshape(6, 5, 1)
    found = Made(augment=("flip",)).prepare({"image": jnp.stack([image] * 200)}, True, jax.random.key(1))["image"]
    mirrored = np.array([np.array_equal(x, image[:, ::-1]) for x in found])
    assert all(m or np.array_equal(x, image) for m, x in zip(mirrored, found, strict=True))
    assert 60 < mirrored.sum() < 140


def test_shift_moves_by_up_to_n_pixels_and_fills_with_0():
    image = jnp.zeros((7, 7, 1)).at[3, 3].set(1)
    places = {tuple(np.argwhere(Shift(2)(jax.random.key(seed), image))[0][:2]) for seed in range(400)}
    assert places == {(row, column) for row in range(1, 6) for column in range(1, 6)}


def test_crop_enlarges_a_smaller_window_to_the_whole():
    image = jnp.full((8, 8, 2), 0.5).at[0].set(1)
    found = [np.asarray(Crop(3)(jax.random.key(seed), image)) for seed in range(40)]
    assert {x.shape for x in found} == {(8, 8, 2)}
    assert {float(x.max()) for x in found} == {0.5, 1.0}
    np.testing.assert_allclose(Crop(1)(jax.random.key(0), jnp.full((4, 4, 1), 0.25)), 0.25)


def test_a_registered_augmentation_of_ones_own_is_named_in_tables_and_keeps_the_shape():
    @register_augment("test_invert", replace=True)
    class Invert(Augment):
        def __call__(self, key, image):
            return 1 - image

    @register_augment("test_half", replace=True)
    class Half(Augment):
        def __call__(self, key, image):
            return image[::2]

    data = Made(augment=[{"kind": "test_invert"}, {"kind": "shift", "n": 1}])
    assert data.augment == (Invert(), Shift(1))
    found = Made(augment=("test_invert",)).prepare({"image": IMAGES}, True, jax.random.key(0))["image"]
    np.testing.assert_allclose(found, 1 - IMAGES / np.float32(255), atol=1e-6)
    assert Made(augment=("test_invert",)).prepare({"image": IMAGES}, False, None)["image"].max() == 1
    with pytest.raises(ConfigError, match="test_half made"):
        Made(augment=("test_half",)).prepare({"image": IMAGES}, True, jax.random.key(0))


def test_augmented_training_is_equal_however_the_batches_are_fed():
    def of(**words):
        data = Made(batch_size=8, augment=("flip", {"kind": "shift", "n": 1}), **words)
        return weights(Net(data=data, columns=30, width=4, max_epochs=2))

    resident = of(resident=True)
    for other in (of(resident=False), of(wrapped=True)):
        jax.tree.map(np.testing.assert_array_equal, resident, other)
    plain = weights(Net(data=Made(batch_size=8), columns=30, width=4, max_epochs=2))
    assert not np.array_equal(plain["kernel"], resident["kernel"])


# Standardizing


def test_standardize_fits_on_the_rows_of_train_alone_and_comes_back_with_the_weights():
    handle = Nitro(Net(max_epochs=2)).train()
    e = handle.experiment
    x = built(Sklearn("iris"))["train"].selected()["x"].astype(np.float64)
    np.testing.assert_allclose(e.data.mean, x.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(e.data.scale, x.std(axis=0), rtol=1e-6)
    raw = datasets.load_iris().data[:5].astype(np.float32)
    expected = ((raw - x.mean(axis=0)) / x.std(axis=0)) @ handle.params["kernel"] + handle.params["bias"]
    np.testing.assert_allclose(handle.predict({"x": raw}), expected, rtol=1e-4, atol=1e-5)
    served = Nitro(Net(), weights=handle, data={})
    np.testing.assert_array_equal(served.experiment.data.mean, e.data.mean)
    np.testing.assert_allclose(served.predict({"x": raw}), expected, rtol=1e-4, atol=1e-5)


def test_a_mean_that_is_written_is_used():
    handle = Nitro(Net(data={"kind": "sklearn", "name": "iris", "standardize": True, "mean": [0.0, 0.0, 0.0, 0.0]}))
    assert not np.any(handle.experiment.data.mean)
    assert handle.experiment.data.scale.shape == (4,)


# The sets


@pytest.mark.parametrize("name", ["iris", "digits", "wine", "breast_cancer", "diabetes"])
def test_the_sets_of_scikit_learn_hold_its_rows(name):
    found, theirs = built(Sklearn(name)), getattr(datasets, f"load_{name}")()
    field = "image" if name == "digits" else "x"
    assert found.declared.inputs == (field,)
    for split in found.values():
        held = split.selected()
        assert held[field].dtype == np.float32
        np.testing.assert_array_equal(
            held[field].reshape(len(held[field]), -1), theirs.data[split.rows].astype(np.float32)
        )
        if name == "diabetes":
            np.testing.assert_array_equal(held["target"], theirs.target[split.rows].astype(np.float32)[:, None])
        else:
            np.testing.assert_array_equal(held["label"], theirs.target[split.rows])
    if name == "diabetes":
        assert (found.declared.target, found.declared.num_targets) == ("target", 1)
    else:
        assert found.declared.labels == tuple(map(str, theirs.target_names))
    if name == "digits":
        assert found["train"].arrays["image"].shape == (1797, 8, 8, 1)


def test_mnist_is_in_the_package_with_its_own_test_images_and_5000_for_validation():
    found = built(Mnist())
    assert {name: split.samples for name, split in found.items()} == {"train": 55_000, "val": 5_000, "test": 10_000}
    assert (found["train"].arrays["image"].dtype, found["train"].arrays["image"].shape[1:]) == (np.uint8, (28, 28, 1))
    # The known counts of the ten digits in the 10,000 test images.
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(found["test"].arrays["label"]).tolist() == counts
    assert found.declared == Declared(("image",), "label", tuple("0123456789"), 10)


def test_mnist_from_a_folder_without_its_files_says_what_is_missing(tmp_path):
    with pytest.raises(NotFoundError, match="train-images-idx3-ubyte"):
        built(Mnist(folder=tmp_path))


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_arrays_of_one_file_are_split_and_of_a_folder_are_taken_as_they_are(tmp_path):
    rng = np.random.default_rng(0)
    x, label = rng.normal(size=(40, 4)).astype(np.float32), LABELS % 3
    whole = built(Arrays(npz(tmp_path / "all.npz", x=x, label=label, note=np.array(["t"] * 40))))
    assert whole.declared == Declared(("x",), "label", num_classes=3)
    assert {name: split.samples for name, split in whole.items()} == {"train": 28, "val": 7, "test": 5}
    np.testing.assert_array_equal(whole["val"].selected()["x"], x[whole["val"].rows])
    folder = tmp_path / "parts"
    folder.mkdir()
    npz(folder / "train.npz", x=x[:30], target=x[:30, :2])
    npz(folder / "val.npz", x=x[30:], target=x[30:, :2])
    found = built(Arrays(folder))
    assert {name: split.samples for name, split in found.items()} == {"train": 30, "val": 10}
    assert found.declared == Declared(("x",), "target", num_targets=2)
    handle = Nitro(Net(data=Arrays(folder), task=Regression(), width=2)).train()
    assert handle.history[-1]["mse"] > 0


def test_arrays_go_by_ids_and_columns_of_their_own(tmp_path):
    x, groups = np.eye(12, dtype=np.float32), np.repeat(np.arange(4), 3)
    order = np.random.default_rng(1).permutation(12)
    plan = GroupSplit(by="owner", proportions=(0.5, 0.25, 0.25), seed=2)
    first = built(Arrays(npz(tmp_path / "a.npz", x=x, owner=groups, key=np.arange(12)), id="key"), plan)
    moved = npz(tmp_path / "b.npz", x=x[order], owner=groups[order], key=np.arange(12)[order])
    second = built(Arrays(moved, id="key"), plan)
    assert first.told["split"] == second.told["split"]
    for name in first:
        assert set(first[name].selected()["key"]) == set(second[name].selected()["key"])


@pytest.mark.parametrize(
    ("arrays", "words", "told"),
    [
        ({"x": np.array([{}, []], dtype=object)}, {}, "holds Python objects"),
        ({"x": np.zeros(3), "label": np.zeros(2)}, {}, "different numbers of rows: x 3, label 2"),
        ({"x": np.float32(1)}, {}, "x no"),
        ({"x": np.zeros(3)}, {"target": "y"}, "no array 'y'"),
        ({"x": np.zeros(3)}, {"inputs": ("z",)}, "no array 'z'"),
        ({"x": np.zeros(3)}, {"id": "key"}, "no array 'key'"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(tmp_path, arrays, words, told):
    with pytest.raises(DataError, match=told):
        built(Arrays(npz(tmp_path / "bad.npz", **arrays), **words), StratifiedSplit(proportions=(1, 0, 0), seed=0))


def test_files_that_are_no_arrays_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match="missing"):
        built(Arrays(tmp_path / "none.npz"))
    with pytest.raises(NotFoundError, match="has no"):
        built(Arrays(tmp_path))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(DataError, match="cannot be read"):
        built(Arrays(tmp_path / "bad.npz"))


def test_a_data_set_is_named_in_a_table_and_a_wrong_name_has_the_nearest():
    assert Net(data={"kind": "sklearn", "name": "wine"}).data == Sklearn("wine")
    with pytest.raises(ConfigError, match="sklearn") as caught:
        Net(data={"kind": "sklaern", "name": "iris"})
    assert "sklearn" in caught.value.nearest
    with pytest.raises(ConfigError, match="nitro list data shows"):
        DATA_SETS.find("nothing", 1)


def test_only_what_prepare_reads_is_part_of_the_program():
    structure = Sklearn("iris").structure()
    assert set(structure) == {"kind", "normalize", "augment", "standardize", "mean", "scale"}
    json.dumps(structure)


# Views of shared arrays


def test_rows_of_arrays_are_batched_as_a_copy_of_them_would_be():
    x, rows = np.arange(60).reshape(20, 3), np.array([19, 0, 7, 8, 3, 4, 5])
    for shuffle in (False, True):
        view = ArrayBatches({"x": x}, 3, shuffle=shuffle, rows=rows)
        copied = ArrayBatches({"x": x[rows]}, 3, shuffle=shuffle)
        for epoch in (0, 1, 2):
            plans = view.begin_epoch(epoch, 5), copied.begin_epoch(epoch, 5)
            for at in range(len(view)):
                np.testing.assert_array_equal(view.batch_at(at, plans[0])["x"], copied.batch_at(at, plans[1])["x"])
            out = [np.zeros((2, 3, 3), int), np.zeros((2, 3, 3), int)]
            view.fill({"x": out[0]}, 0, 2, plans[0])
            copied.fill({"x": out[1]}, 0, 2, plans[1])
            np.testing.assert_array_equal(out[0], out[1])
        np.testing.assert_array_equal(view.resident_arrays().arrays["x"], x[rows])
        assert (view.samples, view.nbytes, view.last_batch_size) == (7, x[rows].nbytes, 1)
        assert view.first(4).samples == 4
        np.testing.assert_array_equal(view.first(4).selected()["x"], x[rows[:4]])
        check_batch_at(view, values=True)
    doubled = ArrayBatches({"x": x}, 3, rows=rows, transform=lambda batch, rng: {"x": batch["x"] * 2})
    np.testing.assert_array_equal(next(iter(doubled))["x"], x[rows[:3]] * 2)
    assert x[19, 0] == 57


@pytest.mark.parametrize(
    ("rows", "told"), [([], "no row"), ([0.5], "float64"), ([[0]], r"\[1, 1\]"), ([4], "has 4"), ([-1], "has -1")]
)
def test_rows_that_there_are_not_are_refused(rows, told):
    with pytest.raises(DataError, match=told):
        ArrayBatches({"x": np.zeros(4)}, 2, rows=rows)


def test_columns_that_float32_cannot_tell_apart_are_refused_by_number(tmp_path):
    x = np.zeros((200, 3), np.float32)
    x[:, 0] = np.arange(200)
    x[:, 1] = np.float64(1.7e9) + np.arange(200)  # seconds since 1970
    x[:, 2] = 1.7e9
    np.savez(tmp_path / "times.npz", x=x, label=np.arange(200) % 2)
    data = {"kind": "arrays", "path": str(tmp_path / "times.npz"), "standardize": True}
    with pytest.raises(DataError, match=r"the values of column 1 apart"):
        Nitro(Net(data=data, columns=3, width=2))
