"""What a worker decides: when it receives, what it begins, how it ends, what it says to SQS."""

from typing import Final

from tests.mutations.mutation import Mutation

WORKER: Final = "services/imagefleet/worker"

WORKING: Final = (
    Mutation(
        "a drain costs the job an attempt",
        f"{WORKER}/attempt.py",
        "return Released(why=why.value)",
        "return outcome_of(TimeoutError())",
        "worker/test_attempt.py",
        ("test_a_stop_ends_the_work_without_charge",),
    ),
    Mutation(
        "a message is deleted before its job is settled",
        f"{WORKER}/attempt.py",
        "            outcome = await self.work()\n",
        "            outcome = await self.work()\n"
        "            self._around.messages.delete(self.delivery.queue, self.delivery.received)\n",
        "worker/test_attempt.py",
        ("test_the_message_is_kept_until_the_outcome_is_committed",),
    ),
    Mutation(
        "a worker deletes the message of its heir",
        f"{WORKER}/attempt.py",
        "if receipt is None or receipt.settled is Settled.LOST:",
        "if receipt is None:",
        "worker/test_attempt.py",
        ("test_the_message_of_a_claim_that_is_found_lost_speaks_for_its_heir",),
    ),
    Mutation(
        "a second signal is taken for a failure of the handler",
        f"{WORKER}/attempt.py",
        "if task is None or task.cancelling():",
        "if task is None:",
        "worker/test_attempt.py",
        ("test_a_second_signal_gets_through_while_the_handler_works",),
    ),
    Mutation(
        "a job that was cancelled while it waited is run",
        f"{WORKER}/attempt.py",
        "if self.claim.cancel_code is not None:",
        "if self.claim.cancel_code is None and self.claim.claim_no < 0:",
        "worker/test_attempt.py",
        ("test_a_flagged_job_is_settled_without_its_handler",),
    ),
    Mutation(
        "an attempt that could not be settled keeps its slot",
        f"{WORKER}/attempt.py",
        "            del self.running[attempt.fence]\n            free_slot()\n",
        "            del self.running[attempt.fence]\n        free_slot()\n",
        "worker/test_attempt.py",
        ("test_a_second_signal_frees_the_slot_and_what_was_cut_short_is_given_back",),
    ),
    Mutation(
        "an outage of Postgres costs the job an attempt",
        f"{WORKER}/outcomes.py",
        'case Unavailable() if error.code == "database_unavailable":',
        'case Unavailable() if error.code == "database_away":',
        "worker/test_attempt.py",
        ("test_every_error_is_an_outcome_whose_public_words_are_fixed",),
    ),
    Mutation(
        "what came for slots that are used no longer is begun",
        f"{WORKER}/consumer.py",
        "most = max(0, most - self._slots.surplus)",
        "most = max(0, most)",
        "worker/test_consumer_slots.py",
        ("test_what_comes_for_slots_that_are_used_no_longer_is_given_back",),
    ),
    Mutation(
        "messages are received although the beat is old",
        f"{WORKER}/consumer.py",
        "        await self._ears.lease.until_fresh()\n",
        "",
        "worker/test_consumer.py",
        ("test_nothing_is_received_while_the_beat_is_old",),
    ),
    Mutation(
        "jobs are claimed although the beat is old",
        f"{WORKER}/consumer.py",
        "if drain.requested or not self._ears.lease.fresh:",
        "if drain.requested:",
        "worker/test_consumer.py",
        ("test_a_poll_that_outlived_the_beat_is_given_back_unclaimed",),
    ),
    Mutation(
        "more is asked for than there are free slots",
        f"{WORKER}/slots.py",
        "taken = min(most, self.free)",
        "taken = most",
        "worker/test_consumer.py",
        ("test_never_more_is_asked_for_than_is_free",),
    ),
    Mutation(
        "more of a type is claimed than there is room for",
        f"{WORKER}/consumer.py",
        "rooms=self._ears.type_slots.rooms,",
        "rooms={},",
        "worker/test_consumer_slots.py",
        (
            "test_only_so_many_of_a_type_begin_and_others_are_not_held_up",
            "test_what_has_no_room_is_not_asked_for_until_there_is_some",
        ),
    ),
    Mutation(
        "what waits for a child is rendered though its worker ends",
        f"{WORKER}/handling.py",
        "elif drain.requested or not await unless(\n"
        "                drain, self._enter(stack, much_memory=much_memory)\n"
        "            ):",
        "elif not await self._enter(stack, much_memory=much_memory):",
        "worker/test_room.py",
        ("test_what_has_not_come_to_a_child_when_the_worker_ends_is_given_back",),
    ),
    Mutation(
        "the next receive waits for the claim of the last",
        f"{WORKER}/consumer.py",
        "                    taking = [group.create_task(self._take(brought, drain))]\n",
        "                    taking = [group.create_task(self._take(brought, drain))]\n"
        "                    await _end_of(taking)\n",
        "worker/test_consumer.py",
        ("test_while_a_batch_is_claimed_the_next_receive_is_on_its_way",),
    ),
    Mutation(
        "a suspect begins beside others",
        f"{WORKER}/slots.py",
        "                while self.others:\n",
        "                while self.others < 0:\n",
        "worker/test_slots.py",
        ("test_it_begins_when_all_others_have_left",),
    ),
    Mutation(
        "a lost claim works on",
        f"{WORKER}/lease.py",
        "if fence in beat.lost:\n                attempt.stop(Stop.LOST)\n            elif",
        "if",
        "worker/test_lease.py",
        ("test_a_lost_claim_is_stopped_and_nothing_is_written_or_deleted",),
    ),
    Mutation(
        "a worker that cannot beat works on",
        f"{WORKER}/lease.py",
        "            self._attempts.stop_all(Stop.BEAT_LOST)\n",
        "",
        "worker/test_lease.py",
        ("test_without_beats_the_work_stops_and_comes_back_uncharged_once_it_can_be_written",),
    ),
    Mutation(
        "a claim on its way is taken for a stray",
        f"{WORKER}/lease.py",
        "for stray in beat.strays & self._strays if",
        "for stray in beat.strays if",
        "worker/test_lease.py",
        (
            "test_a_stray_is_given_back_by_the_second_of_two_successive_beats",
            "test_a_stray_that_a_beat_in_between_did_not_see_is_kept",
        ),
    ),
    Mutation(
        "a beat extends what has ended",
        f"{WORKER}/lease.py",
        "named.keys() & self._attempts.running.keys() - beat.lost",
        "named.keys() - beat.lost",
        "worker/test_lease.py",
        ("test_a_beat_extends_nothing_of_what_ended_before_its_answer",),
    ),
    Mutation(
        "what cannot be buried is lost",
        f"{WORKER}/messages.py",
        "        if failure is None:\n",
        "        if failure is None or reason:\n",
        "worker/test_consumer.py",
        ("test_what_cannot_be_buried_is_not_deleted",),
    ),
    Mutation(
        "a rejected outcome is asked for again",
        "settling.py",
        "replace(settlement, outcome=refused)",
        "replace(settlement, policy=settlement.policy) if refused else settlement",
        "worker/test_settler.py",
        (
            "test_a_result_that_cannot_be_stored_fails_its_own_job_alone",
            "test_an_outcome_that_is_a_bug_fails_its_own_job_alone",
        ),
    ),
    Mutation(
        "a child's word for a file is believed",
        f"{WORKER}/isolation/report.py",
        "        and (facts.bytes, facts.sha256) == measured\n",
        "",
        "worker/isolation/test_report.py",
        ("test_a_file_that_grew_is_not_believed",),
    ),
)
