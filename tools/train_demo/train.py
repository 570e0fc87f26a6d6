"""Train the demo model. Resumable: run it again with the same --run folder to go on.

    python -m tools.train_demo.train --run /tmp/demo --steps 9000 --minutes 9

Needs the packages of the test lock (scipy among them) and a GPU; on a CPU it runs, slowly, to try it out.
"""

import argparse
import json
import math
import time
from pathlib import Path

import safetensors.torch
import torch

from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import ModelSpec
from maskjet.traffic import CLASSES
from tools.train_demo.losses import Groups, loss, training_outputs
from tools.train_demo.scenes import Scenes, draw_scenes, make_batch

SPEC = ModelSpec(
    name="demo",
    input_size=240,
    patch_size=10,
    windows=2,
    decoder_layers=3,
    queries=60,
    has_masks=True,
    class_logits=len(CLASSES),
    backbone_width=192,
    backbone_depth=6,
    backbone_heads=3,
    feature_layers=(2, 4, 6),
    hidden_dim=128,
    cross_attention_heads=8,
    feed_forward_dim=512,
    mask_stride=3,
    class_names=dict(enumerate(CLASSES)),
)


def initialise(network):
    """A fresh start: small weights, boxes at their references, about one percent of scores."""
    for name, parameter in network.named_parameters():
        if name.endswith("lambda1"):
            torch.nn.init.constant_(parameter, 0.1)
        elif name.endswith(("class_token", "cls_token", "position_embeddings")):
            torch.nn.init.trunc_normal_(parameter, std=0.02)
        elif name.endswith("in_proj_weight"):
            torch.nn.init.xavier_uniform_(parameter)
        elif name.endswith("query_feat.weight"):
            torch.nn.init.normal_(parameter, std=1.0)
    torch.nn.init.zeros_(network.refpoint_embed.weight)
    for classify in (network.class_embed, network.transformer.enc_out_class_embed[0]):
        torch.nn.init.constant_(classify.bias, -math.log(99))
    for mlp in (network.bbox_embed, network.transformer.enc_out_bbox_embed[0]):
        torch.nn.init.zeros_(mlp.layers[-1].weight)
        torch.nn.init.zeros_(mlp.layers[-1].bias)
    for layer in network.transformer.decoder.layers:
        _spread_points(layer.cross_attn)


def _spread_points(attention):
    """Each head looks into its own direction, its points one after the other (Deformable DETR)."""
    angles = torch.arange(attention.heads) * (2 * math.pi / attention.heads)
    direction = torch.stack([angles.cos(), angles.sin()], -1)
    direction = direction / direction.abs().max(-1, keepdim=True).values
    steps = torch.arange(1, attention.points + 1).view(1, -1, 1)
    torch.nn.init.zeros_(attention.sampling_offsets.weight)
    attention.sampling_offsets.bias.data = (direction[:, None] * steps).flatten()
    torch.nn.init.zeros_(attention.attention_weights.weight)
    torch.nn.init.zeros_(attention.attention_weights.bias)


class Run:
    """Everything a training run is made of, and its file."""

    def __init__(self, args, device):
        torch.manual_seed(0)
        self.args, self.device = args, device
        self.network = RFDETR(SPEC)
        if args.start:
            self.network.load_state_dict(safetensors.torch.load_file(args.start))
        else:
            initialise(self.network)
        self.groups = Groups(self.network, args.groups)
        self.network.to(device)
        self.groups.to(device)
        named = [*self.network.named_parameters(), *self.groups.named_parameters()]
        decayed = [p for n, p in named if p.ndim > 1 and "embed" not in n and "query_feat" not in n]
        others = [p for n, p in named if p.ndim <= 1 or "embed" in n or "query_feat" in n]
        self.parameters = decayed + others
        parts = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(parts, lr=args.rate, betas=(0.9, 0.99), fused=device.type == "cuda")
        self.average = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
        self.generator = torch.Generator(device).manual_seed(1)
        self.step = 0

    def step_once(self, scenes):
        """One optimisation step; returns the loss."""
        args = self.args
        warm = min((self.step + 1) / args.warm_up, 1.0)
        progress = min(self.step / args.steps, 1.0)
        for part in self.optimizer.param_groups:
            part["lr"] = args.rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        picks = torch.randint(len(scenes.images), (args.batch,), generator=self.generator, device=self.device)
        batch = make_batch(scenes, picks, SPEC, self.generator, nothing=args.nothing)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            outputs = training_outputs(self.network, batch.inputs, self.groups)
        value = loss(outputs, batch, self.groups.count)
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.step += 1
        self._follow(min(0.9995, (1 + self.step) / (10 + self.step)))
        return value.detach()

    @torch.no_grad()
    def _follow(self, share):
        now = list(self.network.state_dict().values())
        torch._foreach_lerp_(list(self.average.values()), now, 1 - share)

    def save(self, path):
        """Write the whole state, and the averaged weights as the package's file."""
        state = {
            "network": self.network.state_dict(),
            "groups": self.groups.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "generator": self.generator.get_state(),
            "step": self.step,
        }
        torch.save(state, path / "state.pt.partial")
        (path / "state.pt.partial").replace(path / "state.pt")
        save_weights(self.average, path / "weights.safetensors", self.step)

    def load(self, path):
        """Go on where `save` left off."""
        state = torch.load(path / "state.pt", map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.groups.load_state_dict(state["groups"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.step = state["average"], state["step"]
        self.generator.set_state(state["generator"].cpu())


def save_weights(state, path, step):
    """float16 safetensors that carry their spec."""
    tensors = {name: tensor.half().contiguous().cpu() for name, tensor in state.items()}
    metadata = {"spec": json.dumps(SPEC.as_dict()), "trained": f"{step} steps, tools/train_demo"}
    safetensors.torch.save_file(tensors, path, metadata=metadata)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--steps", type=int, default=8000, help="of the whole schedule")
    parser.add_argument("--minutes", type=float, default=9.0, help="until this piece stops")
    parser.add_argument("--streets", type=int, default=6500, help="to draw scenes of")
    parser.add_argument("--first-seed", type=int, default=1_000_000, help="of the streets")
    parser.add_argument("--start", type=Path, help="weights.safetensors of an earlier run to start from")
    parser.add_argument("--empty", type=float, default=0.03, help="share of streets with nothing on them")
    parser.add_argument("--nothing", type=float, default=0.02, help="share of a batch that is noise")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--warm-up", type=int, default=300)
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    start = time.monotonic()
    run = Run(args, device)
    if (args.run / "state.pt").exists():
        run.load(args.run)
    scenes = _scenes(args, device)
    print(f"{len(scenes.images)} scenes after {time.monotonic() - start:.0f} s, from step {run.step}", flush=True)
    log = (args.run / "log.jsonl").open("a")
    recent = []
    while run.step < args.steps and time.monotonic() - start < 60 * args.minutes:
        recent.append(run.step_once(scenes))
        if run.step % 100 == 0 or run.step == args.steps:
            line = {
                "step": run.step,
                "loss": round(float(torch.stack(recent).mean()), 4),
                "s": time.monotonic() - start,
            }
            print(json.dumps(line), flush=True)
            log.write(json.dumps(line) + "\n")
            recent = []
    run.save(args.run)
    print(f"saved at step {run.step} of {args.steps}", flush=True)


def _scenes(args, device):
    """Drawn once per run folder."""
    path = args.run / "scenes.pt"
    if path.exists():
        return Scenes(**{name: tensor.to(device) for name, tensor in torch.load(path, weights_only=True).items()})
    scenes = draw_scenes(
        args.streets,
        first_seed=args.first_seed,
        side=SPEC.input_size,
        empty=args.empty,
        device=device,
        workers=args.workers,
    )
    torch.save({name: tensor.cpu() for name, tensor in vars(scenes).items()}, path)
    return scenes


if __name__ == "__main__":
    main()
