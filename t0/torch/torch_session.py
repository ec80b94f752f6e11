"""Trains the model of a run specification on PyTorch.

    train(spec, world, ComputeOptions(activations=torch.bfloat16))

`train` fills the weights from the newest checkpoint in the model directory, which either engine may
have written. If the directory has no checkpoint, the weights are filled from the initial checkpoint
or at random. Both engines share the loop over steps, `t0.training.loop.Stepping`; `TorchEngine`
computes each step. A resumed run continues with the same next batch, even with a different number
of processes.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from t0.checkpoints import checkpoint_files, conversion
from t0.checkpoints.adapter_folders import BaseModel
from t0.config.model_spec import T5Spec, require_t5
from t0.config.specification import RunSpec, from_json, read_value
from t0.errors import UserError, say, unknown_name
from t0.feeding.training_data import TrainingData
from t0.files import write_whole
from t0.files.any_path import any_path
from t0.machine import available_memory_bytes
from t0.torch import (
    adapters,
    checkpointing,
    cuda_graphs,
    data_worker,
    gpus,
    memory,
    optimizers,
    sharding,
)
from t0.torch.checkpointing import Checkpoints
from t0.torch.data_worker import WorkerData
from t0.torch.gradients import BlockUpdates, HostSums, check_host_memory
from t0.torch.model import KERNELS, LOSS, SUM_NAMES, choose_kernel, move_to_device
from t0.torch.processes import World, check_local
from t0.torch.quantization import check_installed
from t0.torch.schedules import schedule
from t0.training import model_directory, recorder, resume_file
from t0.training.loop import (
    NO_HELD_OUT,
    LoopOptions,
    Stepping,
    TimeLimit,
    add_loss_weights,
    check_no_other_normalization,
)
from t0.training.model_directory import CONFIGURATION_FILE, PROMPTS_FILE, Keep
from t0.training.recorder import RunSize, validation_fields

# The maximum number of tokens in a batch, and in a window of examples that are packed together. A
# larger number must be a mistake.
_MOST_TOKENS = 2**26
# The configuration files that a specification may contain, by their names in a model directory.
_RECORDS = (CONFIGURATION_FILE, PROMPTS_FILE, "operative_config.gin", "operative_config.t0.gin")


@dataclasses.dataclass(frozen=True)
class ComputeOptions:
    """Options that affect speed and memory but not results, except for rounding.

    Attributes:
      activations: the type of activations.
      recompute: one of `memory.CHOICES`, which says whether the backward pass computes activations
        again instead of storing them.
      keep_gathered: one of `memory.CHOICES`, which says whether weights that are gathered from
        other processes are kept until the end of the step.
      gradients: one of `memory.GRADIENTS`, which says where gradients stay until weights are
        updated.
      compiled: whether PyTorch compiles the model's blocks, the loss, and Adafactor's passes over
        matrices.
      attention: the attention kernels to try, in this order; see `t0.torch.model`.
      replays: whether the steps are replayed as CUDA graphs if the run has a single process on a
        GPU.
      export_mtf: the folder to which the last checkpoint is exported for Mesh TensorFlow; None if
        it is not exported.
      export_hf: the folder to which the last checkpoint is exported for Hugging Face; None if it is
        not exported.
    """

    activations: torch.dtype = torch.float32
    recompute: str = "auto"
    keep_gathered: str = "auto"
    gradients: str = "auto"
    compiled: bool = False
    attention: tuple[str, ...] = KERNELS
    replays: bool = True
    export_mtf: str | None = None
    export_hf: str | None = None


def train(
    spec: RunSpec, world: World, compute: ComputeOptions, register: Callable[[], None] | None = None
) -> None:
    """Trains until the last step of the specification.

    Args:
      spec: a training run.
      world: the processes of the run.
      compute: options that affect speed and memory.
      register: a function that can be pickled. It registers the run's tasks in the process that
        makes the batches of tasks without a cache. None if the run may only read caches.

    Raises:
      UserError: if this engine does not support a setting of the run, if a folder to export to is
        not empty, if the data ends too early, if the loss is not finite, or if a checkpoint cannot
        be read or written.
      SystemExit: with the status `PREEMPTED` after SIGTERM, or 130 after Ctrl-C.
    """
    options = _read_options(spec, world)
    check_installed(spec.adapter.base if spec.adapter else "full")
    if spec.adapter and compute.export_mtf:
        raise UserError(
            "--export_mtf is for whole models, and this run trains an adapter. Merge it later: "
            f"t0 convert {spec.model_dir} {compute.export_mtf} --to mtf"
        )
    check_local(compute.export_mtf or "", "--export_mtf")
    if world.first:
        for folder in filter(None, (compute.export_mtf, compute.export_hf)):
            conversion.check_destination(any_path(folder), 0)
    compiler = os.environ.get("CXX", "g++")
    if compute.compiled and not shutil.which(compiler):
        raise UserError(
            f"PyTorch could not compile the model: there is no C++ compiler {compiler}; install "
            "one (g++), or leave out --compile"
        )
    time_limit = TimeLimit(options.max_hours)
    with model_directory.lock(spec.model_dir) if world.first else contextlib.nullcontext():
        world.wait()
        data = data_worker.open_data(spec.data, register)
        engine = TorchEngine(spec, options, data, world, compute, register)
        stepping = Stepping(
            engine,
            data,
            options,
            model_dir=spec.model_dir,
            save_every=spec.save_checkpoints_steps,
            prints=world.first,
            eval_words=spec.eval_words,
        )
        if world.first:
            _check_configuration(spec, allowed=options.allow_config_change)
        for line in engine.fill(stepping, time_limit):
            if world.first:
                say(line)
        if world.first:
            _write_records(spec)
            engine.checkpoints.write_model_info()
        stepping.run(time_limit)
        if world.first:
            _export(spec, compute)


def _check_configuration(spec: RunSpec, *, allowed: bool) -> None:
    """Compares the configuration with that of an earlier start; prints the differences.

    Raises:
      UserError: if the configuration differs although that is not allowed, or if a file of the
        specification has an unknown name.
    """
    for name in spec.records:
        if name not in _RECORDS:
            raise unknown_name("file in RunSpec.records", name, _RECORDS)
    if CONFIGURATION_FILE in spec.records:
        current = from_json(spec.records[CONFIGURATION_FILE], Mapping[str, str])
        for change in model_directory.check_same(spec.model_dir, current, allowed=allowed):
            say(f"changed:{change}")


def _write_records(spec: RunSpec) -> None:
    """Writes the configuration files of the specification to the model directory."""
    for name, text in spec.records.items():
        if name == PROMPTS_FILE:
            model_directory.save_prompts(spec.model_dir, text, spec.inputs_vocabulary.file)
        else:
            write_whole(f"{spec.model_dir}/{name}", text)


def _export(spec: RunSpec, compute: ComputeOptions) -> None:
    own_steps = checkpointing.steps(spec.model_dir)
    last = checkpoint_files.latest_step(spec.model_dir, own_steps)
    if last not in own_steps:  # nothing was trained after a checkpoint of Mesh TensorFlow
        checkpoint = checkpoint_files.checkpoint_path(spec.model_dir, last)
        if compute.export_mtf:
            say(f"nothing is exported to {compute.export_mtf}: {checkpoint} is Mesh TensorFlow's")
    else:
        checkpoint = checkpointing.folder_of(spec.model_dir, last)
        if compute.export_mtf:
            dtype = spec.model.weights
            say(checkpointing.export_to_mesh(checkpoint, compute.export_mtf, dtype=dtype))
    if compute.export_hf:
        say(checkpointing.export_to_hugging_face(checkpoint, compute.export_hf))


def _read_options(spec: RunSpec, world: World) -> LoopOptions:
    """Returns the options of the loop; rejects settings that this engine does not support."""
    if spec.data is None or spec.mode != "train":
        raise UserError(
            f"the specification's mode is {spec.mode!r:.40}; the PyTorch engine does 'train' and "
            "'score_eval' of a mixture"
        )
    check_local(spec.model_dir, "--model_dir")
    tasks = [*spec.data.tasks, *(spec.validation.tasks if spec.validation else ())]
    numbers = (spec.batch_sequences, spec.microbatches, *spec.data.lengths.values())
    rows = max(spec.batch_sequences, spec.data.window_rows)
    if (
        any(task.choices != bool(spec.choice_losses) for task in tasks)
        or not {"inputs", "targets"} <= spec.data.lengths.keys()
        or min(numbers) < 1
        or rows * sum(spec.data.lengths.values()) > _MOST_TOKENS
        or spec.optimizer is None
    ):
        raise UserError(
            "the specification has no optimizer, or its batch, lengths, choice_losses and tasks do "
            f"not fit together, or a batch or window has more than {_MOST_TOKENS:,} tokens; write "
            "it again with t5_mesh_transformer --save_spec"
        )
    if spec.batch_sequences % world.size:
        raise UserError(
            f"a batch of {spec.batch_sequences} sequences cannot be divided over {world.size} "
            f"processes; expected a multiple of {world.size} (run.batch_size)"
        )
    if spec.init_variable_filter:
        raise UserError(
            f"tpu_estimator_model_fn.init_variable_filter is {spec.init_variable_filter!r}; the "
            "PyTorch engine reads all variables of the initial checkpoint; expected ''"
        )
    values = {**spec.training, "train_steps": spec.train_steps, "seed": spec.seed}
    options = read_value(values, LoopOptions, "training")
    if options.evaluate_every_steps:
        raise UserError(
            "train_loop.evaluate_every_steps is set, and the PyTorch engine evaluates the held-out "
            "loss only (train_loop.validate_every_steps); evaluate its checkpoints with t0 eval"
        )
    return options


class TorchEngine:
    """The PyTorch engine for `Stepping`. It starts with a model and an optimizer without values.

    Args:
      spec: a training run.
      options: the settings of the run's loop.
      data: the opened data of the run; None to compute only the steps of given batches.
      world: the processes of the run.
      compute: options that affect speed and memory.
      register: see `train`.

    Attributes:
      model: the sharded model.
      kernel: the name of the attention kernel.
      switches: the options that save memory but need more time.
      needed: an estimate of the memory that this process needs.
      size: the sizes of the run.
      keep: the rule that decides which checkpoints are retained.
      checkpoints: the checkpoints of the run.
      save: a method of `checkpoints`.
      max_over_processes: a method of the world.
    """

    def __init__(
        self,
        spec: RunSpec,
        options: LoopOptions,
        data: TrainingData | WorkerData | None,
        world: World,
        compute: ComputeOptions,
        register: Callable[[], None] | None = None,
    ) -> None:
        self._spec, self._options, self._data, self._world = spec, options, data, world
        self._compute, self._register = compute, register
        self._lengths = dict(spec.data.lengths)
        self._lengths["targets"] *= (data and data.choices) or 1
        shape = require_t5(spec.model)
        self._microbatches = memory.count_microbatches(
            spec.batch_sequences, spec.microbatches, world.size
        )
        self.kernel, self._kernel_lines = choose_kernel(
            world.device, compute.activations, compute.attention
        )
        self.switches, self.needed = self._choose_switches(shape)
        model_options = {
            "switches": self.switches,
            "compiled": compute.compiled,
            "kernel": self.kernel,
            "adapter": spec.adapter,
        }
        self.model = sharding.sharded(
            shape, world, activations=compute.activations, **model_options
        )
        self.model.choice_losses = spec.choice_losses
        trained = sharding.trained_weights(self.model, spec.variable_filter)
        local = None
        if self._replays(self.switches):
            local = sharding.unsharded(shape, **model_options)
            local = local.to(compute.activations).to_empty(device=world.device)
            trained = cuda_graphs.use_gradients_of(
                local, self.model, trained, microbatches=self._microbatches
            )
        self._optimizer = optimizers.build(
            spec.optimizer, trained, world.all_reduce_sum, compiled=compute.compiled
        )
        self._updates = self._host_sums = None
        if self.switches.gradients == "offload":
            self._host_sums = HostSums(trained, world.device)
        if self.switches.gradients != "keep":
            self._updates = BlockUpdates(
                self.model,
                self._optimizer,
                trained,
                clip_norm=spec.clip_gradient_norm,
                host=self._host_sums,
            )
        self._rate = schedule(spec.schedule, spec.schedule_steps)
        keep = {**spec.keep_checkpoints, "last": spec.keep_checkpoint_max}
        self.keep = read_value(keep, Keep, "keep_checkpoints")
        count = sum(p.numel() for p in self.model.parameters())
        self.size = RunSize(spec.batch_sequences, self._lengths, count)
        self.checkpoints = Checkpoints(
            spec.model_dir,
            self.model,
            self._optimizer,
            world,
            self.keep,
            spec.targets_vocabulary.file,
        )
        self.save, self.max_over_processes = self.checkpoints.save, world.max_over_processes
        self._step = 0
        self._held_out: list[Mapping[str, np.ndarray]] = []
        positions = spec.batch_sequences if spec.choice_losses else shape.loss_denominator
        self._denominator = positions if positions is not None else self.size.target_positions
        if options.loss_average != "positions":  # the weights of the loss include the denominator
            others = {"Unitransformer.loss_denominator": shape.loss_denominator}
            check_no_other_normalization({**others, "choice_losses": spec.choice_losses or None})
            self._denominator = 1.0
        self._replayed = local and cuda_graphs.ReplayedSteps(
            self.model,
            local,
            self._optimizer,
            denominator=self._denominator,
            clip_norm=spec.clip_gradient_norm,
        )

    def _replays(self, switches: memory.MemorySwitches) -> bool:
        """Returns whether steps are replayed as CUDA graphs."""
        spec, world = self._spec, self._world
        allowed = self._compute.replays and world.device.type in cuda_graphs.DEVICES
        choices = bool(spec.choice_losses)
        return allowed and memory.can_replay(switches, spec.adapter, world.size, choices=choices)

    def _choose_switches(self, shape: T5Spec) -> tuple[memory.MemorySwitches, memory.Needed]:
        """Chooses the options that save memory but need more time.

        Returns:
          (options, memory that one process needs with these options).
        """
        spec, world = self._spec, self._world
        share = memory.MicrobatchShare(
            spec.batch_sequences // world.size // self._microbatches,
            **self._lengths,
            bytes_each=self._compute.activations.itemsize,
            kernel=self.kernel,
        )
        gradients = self._gradient_choices(shape)
        choices = memory.memory_switches(
            self._compute.recompute, self._compute.keep_gathered, gradients, self._step_time(shape)
        )
        needs = [
            memory.needed(
                shape.sizes,
                spec.optimizer,
                share,
                each,
                processes=world.size,
                microbatches=self._microbatches,
                replays=self._replays(each),
                adapter=spec.adapter,
            )
            for each in choices
        ]
        # All processes must have the same options, because they gather a block's weights together.
        # So the process with the least free memory decides.
        index = world.max_over_processes(memory.first_that_fits(needs, world.free_bytes()))
        return choices[index], needs[index]

    def _step_time(self, shape: T5Spec) -> Callable[[memory.MemorySwitches], float] | None:
        """Returns a function that estimates the time of a step; None if the GPU is unknown."""
        gpu, spec, world = self._find_gpu(), self._spec, self._world
        if gpu is None:
            return None
        work = gpus.StepWork(
            memory.model_flops(shape.sizes, rows=spec.batch_sequences, **self._lengths),
            world.size,
            self._microbatches,
            memory.host_bytes(shape.sizes, spec.adapter),
            clips=spec.clip_gradient_norm is not None,
            adapter=spec.adapter is not None,
        )
        return lambda switches: gpus.step_seconds(gpu, work, switches, gpus.MEASURED_UTILISATION)

    def _find_gpu(self) -> gpus.Gpu | None:
        """Returns the type of GPU, if the run computes bfloat16 products whose rate is known."""
        world = self._world
        if world.device.type != "cuda" or self._compute.activations != torch.bfloat16:
            return None
        gpu = gpus.find_gpu_by_device_name(torch.cuda.get_device_name(world.device))
        return gpu if gpu and gpu.teraflops else None

    def _gradient_choices(self, shape: T5Spec) -> tuple[str, ...]:
        """Returns the values of `MemorySwitches.gradients` to choose from."""
        choices = memory.gradient_choices(
            self._compute.gradients,
            sequences=self._spec.batch_sequences,
            microbatches=self._microbatches,
            processes=self._world.size,
            clips=self._spec.clip_gradient_norm is not None,
        )
        needed = memory.host_bytes(shape.sizes, self._spec.adapter)
        if choices == ("offload",):
            check_host_memory(needed)
        elif "offload" in choices and (
            self._world.device.type == "cpu" or needed > available_memory_bytes()
        ):
            return ("keep",)
        return choices

    def fill(self, stepping: Stepping, time_limit: TimeLimit) -> Iterator[str]:
        """Fills the weights and slots; yields lines that say where the values come from."""
        spec, model_dir, world = self._spec, self._spec.model_dir, self._world
        base = None
        if spec.adapter:
            base, lines = self._fill_base()
            yield from lines
        own_step = max(checkpointing.steps(model_dir), default=-1)
        mesh_checkpoint = checkpoint_files.latest(model_dir) if Path(model_dir).is_dir() else None
        mesh_step = checkpoint_files.global_step(mesh_checkpoint) if mesh_checkpoint else -1
        if own_step >= max(mesh_step, 0):
            folder = checkpointing.folder_of(model_dir, own_step)
            if base:
                adapters.check_resumed(folder, base)
            record = self.checkpoints.restore(own_step)
            self._step = own_step
            yield f"restored {folder}, step {own_step:,}"
            stepping.resume(own_step, record, time_limit)
            return
        if mesh_checkpoint:
            with resume_file.open_arrays(mesh_checkpoint) as content:
                self._step, lines = checkpointing.load(
                    self.model, self._optimizer, mesh_checkpoint, world, exact=content or {}
                )
            yield from lines
            stepping.resume(self._step, resume_file.record(mesh_checkpoint), time_limit)
            return
        if base:
            checkpointing.fill_adapter(self.model, spec.seed, world)
        elif spec.init_checkpoint:
            self._step, lines = checkpointing.warm_start(
                self.model,
                self._optimizer,
                spec.init_checkpoint,
                world,
                unfilled=self._options.unfilled_variables,
                seed=spec.seed,
            )
            yield from lines
        else:
            self.fill_at_random()
            yield recorder.random_line(spec.seed)
        stepping.begin(self._step)

    def _fill_base(self) -> tuple[BaseModel, list[str]]:
        """Fills the frozen weights of a run that trains an adapter; returns its base, and lines."""
        spec, hashes = self._spec, {}
        base_path = adapters.check_base(spec)
        _, lines = checkpointing.load(self.model, None, base_path, self._world, hashes=hashes)
        base = BaseModel(base_path, hashes, spec.adapter.base)
        self.checkpoints.write_adapter = functools.partial(
            adapters.write, model=self.model, spec=spec.adapter, base=base, writes=self._world.first
        )
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        line = f"adapter: {spec.adapter.method}, {trained:,} trained weights"
        if spec.adapter.base != "full":
            line += f", on projections in {spec.adapter.base}"
        return base, [*lines, line]

    def fill_at_random(self) -> None:
        """Fills the weights with random initial values."""
        checkpointing.fill_at_random(self.model, self._spec.seed, self._world)

    def take(self, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Takes one training step; returns name -> value of its measurements, such as the loss."""
        rate, count = self._rate(self._step), self._microbatches
        microbatches = [self._own_rows(batch, number, count) for number in range(count)]
        first = self._world.rank * count
        seeds = [_seed(self._spec.seed, self._step, first + number) for number in range(count)]
        if self._replayed:
            sums, squares = self._replayed.take(microbatches, seeds, step=self._step, rate=rate)
        else:
            sums, squares = self._take_eagerly(microbatches, seeds, rate)
        self._step += 1
        return {
            **self._values(sums),
            "learning_rate": rate,
            "gradient_square": squares[0],
            "weight_square": squares[1],
        }

    def _take_eagerly(
        self, microbatches: Sequence[Mapping[str, np.ndarray]], seeds: Sequence[int], rate: float
    ) -> tuple[torch.Tensor, list[float]]:
        """Takes a step that is not replayed; returns the sums of losses, and of squares."""
        updates, last = self._updates, len(microbatches) - 1
        self.model.train()
        sums = torch.zeros(len(SUM_NAMES), device=self._world.device)
        if updates:
            updates.begin(self._step, rate)
        for number, (rows, seed) in enumerate(zip(microbatches, seeds, strict=True)):
            # With updates by block, gathered weights would add to the gradients that are left.
            keep = self.switches.keep and not updates
            sharding.prepare_pass(self.model, last=number == last, keep=keep, sums=not updates)
            torch.manual_seed(seed)
            microbatch_sums = self.model(move_to_device(rows, self._world.device))
            loss = microbatch_sums[LOSS] / self._denominator
            if updates:
                updates.backward(loss, first=not number, last=number == last)
            else:
                loss.backward()
            sums += microbatch_sums.detach()
        if updates:
            return sums, updates.finish()
        squares = self._optimizer.step(self._step, rate, self._spec.clip_gradient_norm)
        self.model.zero_grad(set_to_none=True)
        return sums, squares

    def _values(self, sums: torch.Tensor) -> dict[str, float]:
        values = dict(zip(SUM_NAMES, self._world.all_reduce_sum(sums).tolist(), strict=True))
        return {**values, "loss": values["loss"] / self._denominator}

    def _own_rows(
        self, batch: Mapping[str, np.ndarray], number: int, microbatches: int
    ) -> dict[str, np.ndarray]:
        """Returns this process's rows of a microbatch.

        Microbatch i has the rows i, i + `microbatches`, i + 2 `microbatches` ... of the batch. The
        processes take these rows in turn.

        Args:
          batch: the global batch.
          number: the number of the microbatch, from 0.
          microbatches: the number of microbatches.
        """
        first, step = number + self._world.rank * microbatches, microbatches * self._world.size
        return {name: values[first::step] for name, values in batch.items()}

    def evaluate(self, step: int, *, last: bool) -> dict[str, float]:
        """Computes the held-out loss if it is due at this step; returns its fields, else {}."""
        interval = self._options.validate_every_steps
        if not interval or not (last or step % interval == 0):
            return {}
        count = self._options.validation_batches
        if not self._held_out:
            if self._spec.validation is None:
                raise UserError(NO_HELD_OUT)
            data = data_worker.open_data(self._spec.validation, self._register)
            average = self._options.loss_average
            with contextlib.closing(data.batches(self.size.rows)) as batches:
                self._held_out = [add_loss_weights(next(batches)[0], average) for _ in range(count)]
        self.model.eval()
        sums = torch.zeros(len(SUM_NAMES), device=self._world.device)
        with torch.no_grad():
            for batch in self._held_out:
                rows = self._own_rows(batch, 0, 1)
                sums += self.model(move_to_device(rows, self._world.device))
        sharding.reshard(self.model)
        return validation_fields(self._values(sums), count, self.size.target_positions)

    def checkpoint(self, step: int) -> str:
        """Returns the path of the checkpoint of a step."""
        return str(checkpointing.folder_of(self._spec.model_dir, step))

    def start_lines(self, first: int, last: int) -> list[str]:
        """Returns lines about the size of the run, which trains from step `first` to `last`."""
        world, switches = self._world, self.switches
        activations = str(self._compute.activations).removeprefix("torch.")
        notes = [
            f"engine: PyTorch {torch.__version__}, {world.size} process(es) on "
            f"{world.device.type}, activations in {activations}"
            + (", computed twice (--recompute)" if switches.recompute else "")
            + (", gathered weights kept for a step" if switches.keep and world.size > 1 else ""),
            *self._gradient_lines(),
            *self._kernel_lines,
            *([f"attention: {self.kernel} kernel"] if self.kernel != "auto" else []),
        ]
        return recorder.start_lines(
            first,
            last,
            self.size,
            microbatches=self._microbatches,
            data=self._data,
            notes=[*(f"  {note}" for note in notes), self.needed.line(world.size)],
        )

    def _gradient_lines(self) -> list[str]:
        """Returns lines that say where gradients stay, unless they are kept as usual."""
        if self.switches.gradients == "keep":
            return []
        if not self._host_sums:
            rounding = (
                "; sums over the processes differ by rounding" if self._world.size > 1 else ""
            )
            return [f"gradients: used within the backward pass (--gradients=fused){rounding}"]
        size = f"{self.needed.host / 2**30:.2f} GiB"
        lines = [f"gradients: {size} of host memory (--gradients=offload)"]
        if self._world.device.type == "cuda" and not self._host_sums.pinned:
            lines.append("the system refuses to pin this memory (ulimit -l), so copies are slower")
        return lines

    def ideal_seconds(self) -> float | None:
        """Returns how many seconds a step would take at peak FLOP/s; None if that is unknown."""
        world, gpu = self._world, self._find_gpu()
        if gpu is None:
            return None
        filling = self._data.filling
        flops = memory.model_flops(
            self.model.spec.sizes,
            rows=self.size.rows,
            **self.size.lengths,
            predicted=filling.filled["targets"] if filling else 1.0,
            adapter=self._spec.adapter is not None,
        )
        return flops / (world.size * gpu.teraflops * 1e12)

    def infinite_weights(self) -> list[str]:
        """Returns the names of weights that have NaN or infinity in this process's rows."""
        parameters = sharding.names_and_parameters(self.model)
        parameters |= adapters.adapter_parameters(self.model)
        return [n for n, x in parameters.items() if not sharding.local_rows(x).isfinite().all()]


def _seed(seed: int, step: int, microbatch: int) -> int:
    """Returns PyTorch's seed, with which dropout depends only on these three numbers."""
    mixed = np.random.SeedSequence([seed, step, microbatch]).generate_state(1, np.uint64)
    return int(mixed[0] >> np.uint64(1))
