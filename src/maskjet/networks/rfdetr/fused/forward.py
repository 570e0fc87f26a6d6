"""A forward pass of RF-DETR in kernels of our own, in the order of execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from maskjet.networks.rfdetr.backbone import join_windows
from maskjet.networks.rfdetr.fused.weights import BoxHead, Layer, Weights
from maskjet.networks.rfdetr.network import NetworkOutput
from maskjet.ops.gpu import compiling_ahead, on_device
from maskjet.ops.linear.tiles import Workspace, count_partials
from maskjet.spec import ModelSpec

_URGENT = -1  # stream priority; the default is 0


class Forward:
    """The network for one batch size; the constructor compiles its kernels and allocates its buffers.

    Tokens, pixels and queries of all images are rows of matrices. It never waits, and can be captured in a CUDA graph.
    Independent work runs on two streams: the critical path on one of high priority, the rest on the caller's. For one
    thread at a time.
    """

    def __init__(self, weights: Weights, batch: int) -> None:
        self._weights, self._spec, self._batch = weights, weights.spec, batch
        self._device, self._dtype = weights.patches.device, weights.patches.dtype
        self._patches = _find_patches(weights.spec, batch).to(self._device)
        self._inside = _find_inside(weights.is_inside, batch)
        self._queries = weights.queries.repeat(batch, 1)
        self._buffers: dict[str, Tensor] = {}
        # Rows hold the mask head's expansion, then the decoder's hidden vector, so that a layer reads both.
        layers, (rows, width) = weights.mask_queries, self._queries.shape
        self._decoded = self._buffer("found", rows, width if layers is None else len(layers.expand.bias) + width)
        self._urgent: torch.cuda.Stream | None = None
        self._is_on_caller = False
        self._workspaces = {False: Workspace(), True: Workspace()}  # key: is the caller's stream current?
        with compiling_ahead(self._device), torch.no_grad():
            self(torch.empty(batch, 3, *self._spec.input_hw, dtype=self._dtype, device=self._device))
        if self._device.type == "cuda":  # so that any stream may run the pass
            torch.cuda.current_stream(self._device).synchronize()

    def __call__(self, images: Tensor) -> NetworkOutput:
        """Run the network; see `RFDETR.forward`. The output is valid until the next call."""
        with self._on_urgent_stream():
            memory = self._project(self._encode(images))
            with self._on_caller_stream():
                values = self._linear("values", memory, self._weights.values)
                values_written = self._record_event()
                pixels = self._make_pixels(memory)
            boxes, positions = self._choose_references(memory)
            self._wait_for_event(values_written)
            hidden, sums = self._decode(boxes, positions, values)
            with self._on_caller_stream():
                logits = self._classify("logits", hidden, self._weights.classes)
                refined, _ = self._refine("boxes", hidden, self._weights.boxes, boxes)
            queries = self._make_mask_queries(hidden, sums)
            self._wait_for_caller()
            masks = None
            if queries is not None and pixels is not None:
                masks = self._buffer("masks", self._batch, self._spec.queries, *self._spec.mask_hw)
                self._run("mask_logits", self._per_query(queries), pixels, out=masks)
        return NetworkOutput(self._per_query(logits), self._per_query(refined), masks)

    def _encode(self, images: Tensor) -> Tensor:
        """Run the vision transformer, and the projector's first layer on its feature maps."""
        spec = self._spec
        tokens, sums = self._embed(images)
        joined: Tensor | None = None
        for number, block in enumerate(self._weights.blocks, start=1):
            sequences = self._batch * (1 if number - 1 in spec.feature_layers else spec.windows**2)
            projections = self._linear("projections", tokens, block.projections, sums=sums)
            context = self._attend("context", projections, sequences, spec.backbone_heads)
            tokens, sums = self._linear_and_sums("tokens", context, block.output, residual=tokens)
            hidden = self._linear("expanded", tokens, block.expand, sums=sums)
            name = f"feature {number}" if number in spec.feature_layers else "tokens"
            tokens, sums = self._linear_and_sums(name, hidden, block.contract, residual=tokens)
            if number in spec.feature_layers:
                joined = self._join(spec.feature_layers.index(number), tokens, sums, joined)
        assert joined is not None, "the last block gives a feature map"
        return joined

    def _join(self, index: int, tokens: Tensor, sums: Tensor, joined: Tensor | None) -> Tensor:
        """Add a feature map's term of the projector's first layer, beside the transformer except for the last."""
        layers, half = self._weights.join, self._spec.hidden_dim // 2
        given: dict[str, Any] = {"rows": self._patches, "sums": sums, "residual": joined}
        if index < len(layers) - 1:
            with self._on_caller_stream():
                return self._linear(f"joined {index}", tokens, layers[index], **given)
        self._wait_for_caller()
        parts = 2 + len(self._weights.bottlenecks) // 2
        fused = self._buffer("fused", len(self._patches), parts * half)
        self._linear("joined", tokens, layers[index], out=fused[:, : 2 * half], **given)
        return fused

    def _project(self, fused: Tensor) -> Tensor:
        """Run the projector's bottlenecks in sequence, then the layer that fuses their outputs."""
        first, second = self._weights.bottlenecks[::2], self._weights.bottlenecks[1::2]
        parts = fused.chunk(2 + len(first), dim=1)
        for part, following, into, out_of in zip(parts[1:], parts[2:], first, second, strict=False):
            between = self._linear("between", part, into, image_hw=self._spec.grid_hw)
            self._linear("part", between, out_of, image_hw=self._spec.grid_hw, out=following)
        return self._linear("memory", fused, self._weights.fuse)

    def _choose_references(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Select the top-scoring tokens; returns their boxes and the position terms of all decoder layers."""
        weights, spec = self._weights, self._spec
        tokens, sums = self._linear_and_sums("proposals", memory, weights.tokens, rows=self._inside)
        scores = self._classify("scores", tokens, weights.token_classes, sums=sums, gives_maxima=True)
        best = self._buffer("best", self._batch, spec.queries, dtype=torch.int32)
        self._run("rank_tokens", scores.view(self._batch, spec.tokens, -1), out=best)
        boxes, sines = self._refine("references", tokens, weights.token_boxes, weights.anchors, best.view(-1), sums)
        assert sines is not None
        hidden = self._linear("sines expanded", sines, weights.sines)
        return boxes, self._linear("positions", hidden, weights.positions_of_layers)

    def _decode(self, boxes: Tensor, positions: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Run the decoder; returns the queries' hidden vectors and the sums of their rows.

        As in the transformer, a norm is folded into the layers behind it, but for those behind the last layer.
        """
        content, sums = self._queries, None
        layers, out = self._weights.decoder, self._decoded[:, -content.shape[1] :]
        for layer, added, seen in zip(
            layers, positions.chunk(len(layers), dim=1), values.chunk(len(layers), dim=1), strict=True
        ):
            width = len(layer.projections.bias)
            given: dict[str, Any] = {"sums": sums, "residual": added[:, :width]}
            projections = self._linear("query projections", content, layer.projections, **given)
            context = self._attend("query context", projections, self._batch, self._spec.self_attention_heads)
            content, sums = self._add_layer("content", context, layer.output, content, sums)
            sampled = self._sample(content, sums, layer.sampling, added[:, width:], boxes, seen)
            content, sums = self._add_layer("content seen", sampled, layer.sampled, content, sums)
            hidden = self._linear("content expanded", content, layer.expand, sums=sums)
            content, sums = self._add_layer("hidden", hidden, layer.contract, content, sums, out)
        assert sums is not None, "there are layers"
        return content, sums

    def _add_layer(
        self, name: str, x: Tensor, layer: Layer, content: Tensor, sums: Tensor | None, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute norm(content) + layer(x) and its row sums; without `sums`, content is not normalised."""
        return self._linear_and_sums(name, x, layer, residual=content, residual_sums=sums, out=out)

    def _make_pixels(self, memory: Tensor) -> Tensor | None:
        """Run the image side of the mask head: [B, *mask_hw, hidden_dim]."""
        if not self._weights.mask_blocks:
            return None
        shape = (self._batch, *self._spec.mask_hw, memory.shape[1])
        pixels, normed = self._buffer("pixels", *shape), self._buffer("normed pixels", *shape)
        self._run("resize_pixels", memory.view(self._batch, *self._spec.grid_hw, -1), out=pixels)
        flat = pixels.flatten(0, 2)
        for block in self._weights.mask_blocks:
            self._run("depthwise_norm", pixels, block.depthwise_weight, block.depthwise_bias, eps=block.eps, out=normed)
            self._linear("pixels", normed.flatten(0, 2), block.pointwise, residual=flat, out=flat)
        return pixels

    def _make_mask_queries(self, hidden: Tensor, sums: Tensor) -> Tensor | None:
        """Run the query side of the mask head: rows of hidden_dim channels, a constant and padding."""
        layers = self._weights.mask_queries
        if layers is None:
            return None
        expanded = self._decoded[:, : -hidden.shape[1]]
        self._linear("mask queries expanded", hidden, layers.expand, sums=sums, out=expanded)
        return self._linear("mask projections", self._decoded, layers.project)

    # One method per op; each writes to a buffer of its own.

    def _embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        weights, (tokens, width) = self._weights, self._weights.positions.shape
        out = self._buffer("tokens", self._batch * tokens, width)
        parts = count_partials(len(out), width, width)
        sums = self._buffer(f"sums of tokens in {parts}", len(out), 2, parts, dtype=torch.float32)
        self._run(
            "embed_patches",
            images,
            weights.patches,
            weights.positions,
            windows=self._spec.windows,
            out=out,
            out_sums=sums,
        )
        return out, sums

    def _linear(self, name: str, x: Tensor, layer: Layer, *, out: Tensor | None = None, **given: Any) -> Tensor:
        if out is None:
            out = self._buffer(name, _count_rows(x, given), len(layer.bias))
        workspace = self._workspaces[self._is_on_caller]
        self._run("linear", x, layer.weight, layer.bias, out=out, workspace=workspace, **layer.options, **given)
        return out

    def _linear_and_sums(self, name: str, x: Tensor, layer: Layer, **given: Any) -> tuple[Tensor, Tensor]:
        rows = _count_rows(x, given)
        parts = count_partials(rows, x.shape[1], len(layer.bias), is_whole=layer.norm is not None)
        sums = self._buffer(f"sums of {name} in {parts}", rows, 2, parts, dtype=torch.float32)
        return self._linear(name, x, layer, out_sums=sums, **given), sums

    def _classify(
        self, name: str, x: Tensor, layer: Layer, *, sums: Tensor | None = None, gives_maxima: bool = False
    ) -> Tensor:
        columns = self._spec.class_logits
        if gives_maxima:
            columns = count_partials(len(x), layer.weight.shape[1], len(layer.bias), x.shape[1])
        out = self._buffer(name, len(x), columns, dtype=torch.float32)
        return self._linear(name, x, layer, out=out, sums=sums, gives_maxima=gives_maxima)

    def _attend(self, name: str, projections: Tensor, sequences: int, heads: int) -> Tensor:
        out = self._buffer(name, len(projections), projections.shape[1] // 3)
        self._run(
            "attention",
            projections.view(sequences, len(projections) // sequences, 3, heads, -1),
            out.view(sequences, len(out) // sequences, -1),
        )
        return out

    def _sample(
        self, content: Tensor, sums: Tensor, layer: Layer, position: Tensor, boxes: Tensor, values: Tensor
    ) -> Tensor:
        spec = self._spec
        points = (spec.sampling_points, 3, spec.cross_attention_heads)
        projections = self._buffer("points", len(content), spec.sampling_points * 3 * spec.cross_attention_heads)
        self._linear("points", content, layer, sums=sums, residual=position, out=projections)
        out = self._buffer("sampled", *content.shape)
        self._run(
            "deformable_attention",
            projections.view(self._batch, spec.queries, *points),
            self._per_query(boxes),
            self._per_pixel(values),
            out=self._per_query(out),
        )
        return out

    def _refine(
        self,
        name: str,
        x: Tensor,
        head: BoxHead,
        references: Tensor,
        rows: Tensor | None = None,
        sums: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Refine references by a box head; with `rows`, the anchors of those tokens, and also return box sines."""
        hidden = self._linear("boxes hidden", x, head.hidden[0], rows=rows, sums=sums)
        hidden = self._linear("boxes hidden again", hidden, head.hidden[1])
        out = self._buffer(name, len(hidden), 4, dtype=torch.float32)
        sines = None if rows is None else self._buffer("sines", len(hidden), 4 * len(self._weights.frequencies))
        self._run(
            "refine_boxes",
            hidden,
            head.last.weight,
            head.last.bias,
            references,
            rows=rows,
            offsets=None if rows is None else self._weights.box_offsets,
            frequencies=None if rows is None else self._weights.frequencies,
            out=out,
            out_embedding=sines,
        )
        return out, sines

    def _run(self, op: str, first: Tensor, *args: Any, **given: Any) -> None:
        _load_kernel(op)(first, *args, **given)

    def _buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        return self._buffers[name]

    def _per_query(self, rows: Tensor) -> Tensor:
        return rows.view(self._batch, self._spec.queries, -1)

    def _per_pixel(self, rows: Tensor) -> Tensor:
        height, width = self._spec.grid_hw
        pixel = rows.stride(0)
        shape = (self._batch, height, width, rows.shape[1])
        return rows.as_strided(shape, (height * width * pixel, width * pixel, pixel, 1))

    # The two streams; without CUDA all launches run in sequence.

    @contextmanager
    def _on_urgent_stream(self) -> Iterator[None]:
        """Launch on the urgent stream; at the end the caller's stream waits for it."""
        if self._device.type != "cuda":
            yield
            return
        self._caller = torch.cuda.current_stream(self._device)
        self._urgent = _stream_beside(self._caller)
        self._urgent.wait_stream(self._caller)
        with torch.cuda.stream(self._urgent):
            yield
        self._caller.wait_stream(self._urgent)

    @contextmanager
    def _on_caller_stream(self) -> Iterator[None]:
        """Launch on the caller's stream, concurrently with later launches of the urgent stream."""
        if self._urgent is None:
            yield
            return
        self._caller.wait_stream(self._urgent)
        self._is_on_caller = True
        try:
            with torch.cuda.stream(self._caller):
                yield
        finally:
            self._is_on_caller = False

    def _record_event(self) -> torch.cuda.Event | None:
        return None if self._urgent is None else self._caller.record_event()

    def _wait_for_event(self, event: torch.cuda.Event | None) -> None:
        if self._urgent is not None and event is not None:
            self._urgent.wait_event(event)

    def _wait_for_caller(self) -> None:
        """Let the urgent stream wait for the caller's."""
        if self._urgent is not None:
            self._urgent.wait_stream(self._caller)


def _count_rows(x: Tensor, given: dict[str, Any]) -> int:
    """Rows of a layer's output: those gathered from x, or all."""
    rows = given.get("rows")
    return len(x if rows is None else rows)


@cache
def _load_kernel(op: str) -> Callable[..., None]:
    """Import an op's Triton implementation, on first use."""
    launch: Callable[..., None] = getattr(import_module(f"maskjet.ops.{op}.triton"), op)
    return launch


# Row indices for `linear`, which gathers them from a matrix of tokens or pixels.


def _find_patches(spec: ModelSpec, batch: int) -> Tensor:
    """Row index of each grid cell's token, int32 [B × tokens]; a window's patches follow its class token."""
    windows = spec.windows**2
    tokens = torch.arange(spec.tokens + windows, dtype=torch.int64, device="cpu").view(windows, -1, 1)[:, 1:]
    return _per_image(join_windows(tokens, spec.grid_hw, spec.windows).flatten(), batch, spec.tokens + windows)


def _find_inside(is_inside: Tensor, batch: int) -> Tensor | None:
    """Row index of each grid cell, int32 [B × tokens], -1 for cells to mask; None if there are none."""
    if is_inside.all():
        return None
    pixels = torch.arange(len(is_inside), dtype=torch.int64, device="cpu").where(is_inside.cpu(), -1)
    return _per_image(pixels, batch, len(is_inside)).to(is_inside.device)


def _per_image(rows: Tensor, batch: int, step: int) -> Tensor:
    """Repeat an image's row indices for a batch, offset by `step` per image; -1 stays."""
    first = torch.arange(batch, dtype=torch.int64, device="cpu")[:, None] * step
    return (rows + first).where(rows >= 0, -1).flatten().int()


@cache
def _stream_beside(caller: torch.cuda.Stream) -> torch.cuda.Stream:
    """The high-priority stream shared by all passes called on one stream; those never overlap.

    PyTorch hands out 32 streams per priority in turn. If every pass took one, two slots would soon share a stream, and
    launches of one would be captured in the other's graph.
    """
    with on_device(caller.device):
        return torch.cuda.Stream(caller.device, priority=_URGENT)  # type: ignore[no-untyped-call]
