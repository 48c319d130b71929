"""A scenario → what it leaves. The same scenario always leaves the same."""

from __future__ import annotations

from nccl_slurm.testing import march, startup, strikes
from nccl_slurm.testing.lines import nccl
from nccl_slurm.testing.reactions import Reactions
from nccl_slurm.testing.scenario import Scenario
from nccl_slurm.testing.story import Story

__all__ = ["simulate"]


def simulate(scenario: Scenario) -> Story:
    story = Story.of(scenario)
    starting = [event for event in scenario.events if event.at is None]
    startup.open_job(story, done=not starting)
    play = Reactions(story)
    if starting:
        for event in starting:
            startup.fail(play, event)
    else:
        _train(story, play)
    play.run()
    if story.state is None:
        well = all(process.end is not None and process.end.code == 0 for process in story.processes)
        story.state, story.exit = ("COMPLETED", "0:0") if well else ("FAILED", "1:0")
    story.end = play.now + 2.0
    return story


def _train(story: Story, play: Reactions) -> None:
    struck = march.march(story)
    _run_ahead(story)
    _progress(story)
    if story.scenario.noise:
        _noise(story)
    for strike in struck:
        play.later(strike.time, strikes.act, strike.event, play)
    play.watch()


def _run_ahead(story: Story) -> None:
    """The CPU enqueues beyond the collective that the GPU is in, unless the program waits for each."""
    for process in story.processes:
        if process.wait is not None and story.scenario.run_ahead and story.scenario.backend == "nccl":
            process.entered[process.wait.group.guid] += story.chance.randint(0, story.scenario.run_ahead)


def _progress(story: Story) -> None:
    """Rank 0 tells of its steps, as training programs do."""
    first = story.processes[0]
    for step in range(max(0, first.step - 3), first.step):
        at = march.begin_of(story, step + 1)
        story.print(
            0, at, f"step {step} of {story.scenario.steps} loss {2.4 - 0.01 * step:.4f} {story.scenario.step_s:.2f} s"
        )


def _noise(story: Story) -> None:
    """Events of ports that harm nobody, on some nodes."""
    if story.scenario.backend != "nccl" or story.scenario.network != "IB":
        return
    at = march.begin_of(story, 0)
    for host in story.scenario.nodes[::3]:
        rank = story.scenario.on(host)[0]
        text = "NET/IB : mlx5_0:1 Got async event : port active"
        story.log(rank, at, nccl.warn(story.place, rank, story.clock(rank, at), "transport/net_ib.cc:117", text))
