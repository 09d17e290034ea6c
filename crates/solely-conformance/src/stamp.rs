//! The list of promises, and the macro that stamps them onto an engine.

/// Makes a test of every promise for one engine.
#[macro_export]
macro_rules! stamp {
    ($engine:ty) => {
        $crate::stamp_module!($engine, cache, [
            an_entry_has_three_ages,
            entries_are_read_in_the_order_asked_for,
            a_plain_write_replaces_and_its_version_grows,
            a_write_needs_a_higher_version,
            entries_of_one_write_are_judged_one_by_one,
            a_forgotten_entry_is_not_there,
            spaces_are_apart,
            entries_survive_a_restart,
        ]);
        $crate::stamp_module!($engine, commit, [
            everything_of_a_commit_is_there_together,
            a_stale_commit_writes_nothing,
            a_part_that_fails_undoes_the_whole_commit,
            an_effect_whose_condition_fails_is_skipped,
            a_complete_partition_takes_no_page,
            a_next_job_that_is_there_already_is_no_failure,
            a_job_may_be_followed_by_one_of_its_own_key,
        ]);
        $crate::stamp_module!($engine, event, [
            a_timeline_is_in_order_page_by_page,
            an_outbox_holds_what_is_not_delivered,
            a_cursor_outlives_its_event,
        ]);
        $crate::stamp_module!($engine, job, [
            an_enqueued_job_is_delivered_once,
            a_second_enqueue_of_a_waiting_key_names_the_first,
            a_duplicate_of_a_running_job_says_until_when,
            a_duplicate_of_a_retrying_job_names_it,
            a_key_is_free_once_its_job_is_completed,
            a_key_is_free_once_its_job_is_dead,
            the_same_key_in_another_queue_is_another_job,
            two_of_one_key_in_one_enqueue_are_one_job,
            racing_enqueues_of_one_key_make_one_job,
            claims_are_most_urgent_first_then_oldest,
            a_delayed_job_waits_and_the_claim_says_how_long,
            jobs_that_wait_do_not_hide_those_that_are_due,
            a_claim_takes_no_more_than_asked,
            a_claim_takes_only_its_queue,
            racing_claims_never_share_a_job,
            a_claim_needs_a_process_that_has_beaten,
            jobs_survive_a_restart,
            a_trigger_during_a_run_runs_it_once_more,
            a_trigger_before_a_run_is_a_duplicate,
            a_retry_serves_the_trigger_that_came_before_it,
            a_trigger_during_a_run_that_dies_is_carried_on,
            a_message_within_its_window_is_a_duplicate,
            a_window_ends_by_time,
            a_repair_passes_the_window,
            a_live_job_is_named_before_the_window,
            cancelling_closes_what_waits_and_leaves_what_runs,
        ]);
        $crate::stamp_module!($engine, lease, [
            a_held_key_says_by_whom_and_until_when,
            several_keys_are_taken_together_or_not_at_all,
            racing_for_overlapping_keys_gives_one_of_them_each,
            a_fence_grows_across_release,
            a_fence_grows_across_expiry,
            a_fence_grows_across_restart,
            a_fence_is_above_that_of_every_key,
            a_renewal_moves_the_end_and_not_the_fence,
            a_renewal_may_change_the_time,
            an_ended_lease_cannot_be_renewed,
            only_the_owner_can_release,
            a_lease_is_not_re_entrant,
            a_released_lease_frees_all_its_keys,
            a_clients_lease_outlives_its_server,
            a_process_lease_ends_with_its_process,
            held_keys_are_listed_in_order,
            a_waiter_is_woken_by_a_release,
            a_wait_that_is_over_says_who_has_it,
            waiters_get_it_one_after_the_other,
            a_waiter_that_leaves_keeps_nothing,
        ]);
        $crate::stamp_module!($engine, liveness, [
            a_silent_process_is_buried,
            a_beating_process_is_not_buried,
            a_process_that_was_paused_does_not_bury_others,
            a_new_process_does_not_bury_others,
            a_buried_process_may_come_back,
        ]);
        $crate::stamp_module!($engine, queue, [
            jobs_are_listed_by_queue_state_and_key,
            an_unknown_job_is_none,
            a_queue_counts_its_jobs,
            a_paused_queue_gives_nothing,
            a_pause_ends_by_time,
            a_pause_survives_a_restart,
            a_pause_can_be_ended,
            a_pause_is_of_one_queue,
        ]);
        $crate::stamp_module!($engine, rescue, [
            a_job_under_a_live_lock_is_left_alone,
            a_job_whose_lock_ended_is_freed,
            claims_of_a_dead_process_are_free_within_ten_seconds,
            claims_of_a_process_that_left_are_free_at_once,
            claims_from_before_a_restart_are_freed,
            an_exhausted_job_is_taken_over,
            an_exhausted_job_of_an_unknown_queue_is_left,
            a_rescuer_that_dies_leaves_the_job_to_the_next,
            a_rescuers_dead_letter_carries_its_effect,
        ]);
        $crate::stamp_module!($engine, revive, [
            a_dead_job_comes_back_with_all_its_attempts,
            a_taken_key_does_not_abort_the_sweep,
            two_dead_jobs_of_one_key_make_one_live_job,
            a_dry_run_changes_nothing,
            only_those_asked_for_come_back,
            a_rate_spreads_them_over_time,
            live_and_completed_jobs_are_not_revived,
        ]);
        $crate::stamp_module!($engine, settle, [
            a_completed_job_is_kept_without_its_payload,
            a_retry_keeps_the_id_and_waits,
            a_postponed_job_spends_no_attempt,
            a_released_job_is_due_at_once_at_its_old_place,
            a_dead_job_keeps_its_reason_and_payload,
            a_second_settlement_is_refused,
            a_worker_past_its_lock_can_do_nothing,
            a_worker_whose_job_was_freed_can_do_nothing,
            a_worker_whose_job_was_redelivered_can_do_nothing,
            a_made_up_fence_is_refused,
            a_claim_on_no_job_is_stale,
            a_renewed_lock_outlives_its_first_end,
            one_stale_commit_does_not_hold_up_its_batch,
        ]);
        $crate::stamp_module!($engine, upkeep, [
            finished_jobs_are_pruned_after_their_retention,
            what_has_ended_is_pruned_in_batches,
            undelivered_events_are_kept,
            what_is_live_is_not_pruned,
            a_new_store_is_healthy_and_sound,
            a_closed_store_refuses,
        ]);
        $crate::stamp_module!($engine, upstream, [
            slots_are_evenly_spaced,
            unused_slots_are_forfeited,
            a_paused_upstream_refuses_until_its_time,
            the_later_end_of_two_pauses_holds,
            a_retry_after_pauses_every_instance,
            a_hanging_upstream_times_out_and_opens_its_breaker,
            a_refused_request_does_not_open_the_breaker,
            no_more_calls_at_once_than_allowed,
            a_caller_that_leaves_gives_its_place_back,
            instances_share_one_rate,
        ]);
        $crate::stamp_module!($engine, worker, [
            a_worker_does_what_is_enqueued,
            a_worker_beats_before_it_claims,
            no_more_run_at_once_than_allowed,
            a_job_that_keeps_failing_dies_with_its_effect,
            a_permanent_failure_is_dead_at_once,
            a_panic_is_a_failure_of_the_job,
            a_handler_past_its_deadline_is_stopped,
            a_long_delivery_keeps_its_lock,
            a_lost_claim_stops_its_work,
            stopping_lets_deliveries_finish,
            stopping_releases_what_does_not_finish,
            a_postponed_delivery_is_tried_again_without_spending_attempts,
        ]);
    };
}

/// Makes a test of each promise of one module.
#[macro_export]
macro_rules! stamp_module {
    ($engine:ty, $module:ident, [$($promise:ident),* $(,)?]) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $promise() {
                    let engine = <$engine as $crate::Engine>::fresh().await;
                    $crate::$module::$promise($crate::World::on(engine).await).await;
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    /// A promise that is written but not stamped would be prose.
    #[test]
    fn every_promise_is_stamped() {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let stamped = std::fs::read_to_string(source.join("stamp.rs")).expect("this file");
        for file in std::fs::read_dir(source).expect("the sources") {
            let text = std::fs::read_to_string(file.expect("a file").path()).unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with("pub async fn") && line.contains("world: World)")) {
                let name = line.trim_start_matches("pub async fn ").split('(').next().expect("a name");
                assert!(stamped.contains(&format!(" {name},")), "{name} is not stamped");
            }
        }
    }
}
