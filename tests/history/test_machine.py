from nccl_slurm.history.machine import EVENT_KINDS, Machine, MachineEvent


def test_events_of_a_kind_from_a_time_on() -> None:
    events = [MachineEvent(float(at), kind, "x", "poll") for at, kind in enumerate(EVENT_KINDS)]
    machine = Machine("i-1", "n1", events=[*events, MachineEvent(9.0, "fault", "kernel.xid", "kernel")])
    assert [event.time for event in machine.of_kind("fault")] == [0.0, 9.0]
    assert [event.time for event in machine.of_kind("fault", since=1.0)] == [9.0]
