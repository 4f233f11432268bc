//! `hapax work`: what a command gets, what its end means, and when it is stopped.

use std::process::{Child, Command};

use serde_json::Value;

use crate::broker::Broker;
use hapax_testing::{Signal, signal, until};

/// A worker that is stopped at the end of the test.
struct Worker(Child);

impl Worker {
    fn start(broker: &Broker, exec: &str, arguments: &[&str]) -> Self {
        let mut command = broker.command(&["work", "orders", "--quiet", "--exec", exec]);
        Self(command.args(arguments).spawn().unwrap())
    }

    /// Asks it to drain; its exit code.
    fn drain(mut self) -> Option<i32> {
        signal(self.0.id(), Signal::TERM);
        self.0.wait().unwrap().code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a key to be in a state.
fn state(broker: &Broker, key: &str, state: &str) -> Value {
    until(&format!("{key} to be {state}"), || {
        let found = broker.json(&["get", "orders", key]);
        (found["state"] == state).then_some(found)
    })
}

on_one_and_on_four!(the_command_gets_the_message_and_its_output_is_the_result);
fn the_command_gets_the_message_and_its_output_is_the_result(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders", "--order", "group"]);
    broker.ok(&[
        "send",
        "orders",
        "three lemons",
        "--key",
        "order-42",
        "--group",
        "eu",
        "--header",
        "trace-id=7",
        "--header",
        "x-user=ada",
        "--header",
        "x_user=eve",
        "--content-type",
        "text/plain",
    ]);
    let exec = "echo \"$HAPAX_KEY $HAPAX_QUEUE $HAPAX_ATTEMPT $HAPAX_GENERATION $HAPAX_GROUP \
                $HAPAX_CONTENT_TYPE $HAPAX_HEADER_TRACE_ID ${#HAPAX_ID} \
                ${HAPAX_HEADER_X_USER-none} $HAPAX_HEADERS $HAPAX_FENCE\"; \
                tr a-z A-Z";
    let worker = Worker::start(&broker, exec, &["--worker", "ada"]);
    let done = state(&broker, "order-42", "done");
    let result = done["result"]["body"].as_str().unwrap();
    assert!(result.starts_with("order-42 orders 1 0 eu text/plain 7 36 none {"), "{result}");
    let headers = r#"{"trace-id":"7","x-user":"ada","x_user":"eve"}"#;
    assert!(result.contains(headers), "{result}");
    assert!(result.ends_with("\nTHREE LEMONS"), "{result}");
    assert_eq!(done["worker"], "ada");
    assert_eq!(worker.drain(), Some(0));
}

on_one_and_on_four!(exit_75_is_tried_again_and_another_one_has_failed_with_its_last_words);
fn exit_75_is_tried_again_and_another_one_has_failed_with_its_last_words(partitions: u16) {
    let broker = Broker::start_of(partitions);
    let backoff = ["--backoff-min", "10ms", "--backoff-max", "20ms"];
    let create = ["queue", "create", "orders", "--max-attempts", "3"];
    broker.ok(&[&create[..], &backoff[..]].concat());
    broker.ok(&["send", "orders", "later", "--key", "later"]);
    broker.ok(&["send", "orders", "never", "--key", "never"]);
    let exec = "read body; case $body$HAPAX_ATTEMPT in \
                later1) echo 'the bank is closed' >&2; exit 75;; \
                later2) echo paid;; \
                *) echo 'no such account' >&2; exit 3;; esac";
    let worker = Worker::start(&broker, exec, &[]);
    let later = state(&broker, "later", "done");
    assert_eq!((&later["attempts"], &later["result"]["body"]), (&2.into(), &"paid\n".into()));
    let failed: Vec<&Value> = later["history"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["event"] == "failed")
        .collect();
    assert_eq!(failed[0]["detail"], "not now: the bank is closed");
    let never = state(&broker, "never", "dead");
    assert_eq!(
        (&never["attempts"], &never["error"]),
        (&3.into(), &"exit code 3: no such account".into())
    );
    assert_eq!(worker.drain(), Some(0));
}

on_one_and_on_four!(a_command_can_save_where_it_was_and_the_next_attempt_goes_on_from_there);
fn a_command_can_save_where_it_was_and_the_next_attempt_goes_on_from_there(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders", "--backoff-min", "0ms", "--backoff-max", "0ms"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    let save = "settle save \"$HAPAX_QUEUE\" \"$HAPAX_LEASE\" charged 'charge 17' >&2";
    let exec = format!(
        "test -n \"$HAPAX_POINT_CHARGED\" && echo \"found $HAPAX_POINT_CHARGED\" && exit 0; \
         {} {save} && exit 1",
        env!("CARGO_BIN_EXE_hapax")
    );
    let worker = Worker::start(&broker, &exec, &[]);
    let done = state(&broker, "a", "done");
    assert_eq!(done["result"]["body"], "found charge 17\n");
    assert_eq!(worker.drain(), Some(0));
}

on_one_and_on_four!(a_command_whose_lease_is_lost_is_stopped_with_everything_it_started);
fn a_command_whose_lease_is_lost_is_stopped_with_everything_it_started(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders", "--backoff-min", "0ms", "--backoff-max", "0ms"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    // A child of the shell, whose number is told; it would live for longer than the test.
    let exec = "sleep 1000 & echo $! > child; wait";
    let worker = Worker::start(&broker, exec, &["--lease", "8s"]);
    let child = until("the command to run", || {
        let text = std::fs::read_to_string(broker.path().join("child")).ok()?;
        text.ends_with('\n').then(|| text.trim().to_owned())
    });
    let is_alive = || {
        let told = Command::new("ps").args(["-o", "stat=", "-p", &child]).output().unwrap();
        let told = String::from_utf8_lossy(&told.stdout).trim().to_owned();
        !told.is_empty() && !told.starts_with('Z')
    };
    assert!(is_alive());
    // The worker stalls for longer than its lease, and somebody else takes the message.
    signal(worker.0.id(), Signal::STOP);
    let taken = broker.json(&["receive", "orders", "--wait", "100s", "--lease", "1h"]);
    assert_eq!(taken["attempt"], 2);
    assert!(is_alive(), "nobody told it yet");
    signal(worker.0.id(), Signal::CONT);
    until("the command's end", || (!is_alive()).then_some(()));
    assert_eq!(worker.drain(), Some(0), "the worker itself goes on");
    broker.ok(&["settle", "done", "orders", taken["lease"].as_str().unwrap(), "mine"]);
    assert_eq!(broker.ok(&["get", "orders", "a", "--result"]), "mine");
}

on_one_and_on_four!(a_command_that_takes_too_long_has_failed);
fn a_command_that_takes_too_long_has_failed(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders", "--max-attempts", "1"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    let worker = Worker::start(&broker, "exec sleep 1000", &["--timeout", "100ms"]);
    let dead = state(&broker, "a", "dead");
    assert!(dead["error"].as_str().unwrap().contains("longer than 100 ms"), "{dead}");
    assert_eq!(worker.drain(), Some(0));
}

on_one_and_on_four!(a_result_that_is_too_large_is_not_cut);
fn a_result_that_is_too_large_is_not_cut(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    let worker = Worker::start(&broker, "head -c 2000 /dev/zero", &["--max-result", "1000"]);
    let dead = state(&broker, "a", "dead");
    assert!(dead["error"].as_str().unwrap().contains("more than 1000 bytes"), "{dead}");
    assert_eq!(worker.drain(), Some(0));
}

on_one_and_on_four!(a_drain_finishes_what_runs_and_gives_back_the_rest);
fn a_drain_finishes_what_runs_and_gives_back_the_rest(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders"]);
    for key in ["a", "b", "c"] {
        broker.ok(&["send", "orders", key, "--key", key]);
    }
    let exec = "touch running; while ! test -e finish; do sleep 0.02; done; echo done";
    let mut worker = Worker::start(&broker, exec, &[]);
    until("the first to run", || broker.path().join("running").exists().then_some(()));
    signal(worker.0.id(), Signal::INT);
    until("the rest to be given back", || {
        let stats = broker.json(&["queue", "show", "orders"])["stats"].clone();
        (stats["leased"] == 1 && stats["ready"] == 2).then_some(())
    });
    std::fs::write(broker.path().join("finish"), "").unwrap();
    assert_eq!(worker.0.wait().unwrap().code(), Some(0));
    let stats = broker.json(&["queue", "show", "orders"])["stats"].clone();
    assert_eq!((&stats["done_total"], &stats["ready"]), (&1.into(), &2.into()));
    assert_eq!(stats["failed_total"], 0, "nothing was charged an attempt");
}

on_one_and_on_four!(an_idle_worker_ends_by_itself_having_done_everything);
fn an_idle_worker_ends_by_itself_having_done_everything(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders"]);
    for key in 0..20 {
        broker.ok(&["send", "orders", "x", "--key", &key.to_string()]);
    }
    let arguments = ["work", "orders", "--exec", "cat", "--idle", "2s", "-c", "4", "-o", "json"];
    let told = broker.run(&arguments);
    assert_eq!(told.code, Some(0), "{told:?}");
    let lines: Vec<Value> =
        told.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 20);
    assert!(lines.iter().all(|line| line["ended"] == "done"), "{told:?}");
}

/// A queue that parks, with one message, on a broker of so many partitions.
fn parking(partitions: u16) -> Broker {
    let broker = Broker::start_of(partitions);
    let create = ["queue", "create", "orders", "--on-lost", "park", "--max-attempts", "3"];
    broker.ok(&[&create[..], &["--backoff-min", "0ms", "--backoff-max", "0ms"]].concat());
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    broker
}

/// A command that begins an effect, prints a line to the file `effects`, and goes on.
fn begins(then: &str) -> String {
    let begin = "settle begin \"$HAPAX_QUEUE\" \"$HAPAX_LEASE\" >/dev/null";
    format!("{} {begin} && echo printed >> effects && {then}", env!("CARGO_BIN_EXE_hapax"))
}

/// How often the effect happened.
fn effects(broker: &Broker) -> usize {
    let text = std::fs::read_to_string(broker.path().join("effects")).unwrap_or_default();
    text.lines().count()
}

/// Runs a command that begins and ends like this: the message is in this state in the end, and the
/// effect happened so many times.
fn check_begun(partitions: u16, then: &str, arguments: &[&str], end: &str, times: usize) -> Value {
    let broker = parking(partitions);
    let worker = Worker::start(&broker, &begins(then), arguments);
    let found = state(&broker, "a", end);
    assert_eq!(worker.drain(), Some(0));
    assert_eq!(broker.json(&["get", "orders", "a"])["state"], end);
    assert_eq!(effects(&broker), times, "{found}");
    found
}

on_one_and_on_four!(a_begun_command_that_a_signal_ends_is_parked);
fn a_begun_command_that_a_signal_ends_is_parked(partitions: u16) {
    let parked = check_begun(partitions, "kill -9 $$", &[], "parked", 1);
    assert!(parked["error"].as_str().unwrap().contains("SIGKILL"), "{parked}");
    // The shell lives on, and tells of its last command's end.
    let parked = check_begun(partitions, "sh -c 'kill -9 $$'", &[], "parked", 1);
    assert!(parked["error"].as_str().unwrap().contains("signal"), "{parked}");
}

on_one_and_on_four!(a_begun_command_that_takes_too_long_is_parked);
fn a_begun_command_that_takes_too_long_is_parked(partitions: u16) {
    let timeout = ["--timeout", "3s"];
    let parked = check_begun(partitions, "exec sleep 1000", &timeout, "parked", 1);
    assert!(parked["error"].as_str().unwrap().contains("longer than 3 s"), "{parked}");
}

on_one_and_on_four!(a_begun_command_that_is_in_doubt_says_so_by_its_exit_code);
fn a_begun_command_that_is_in_doubt_says_so_by_its_exit_code(partitions: u16) {
    let then = "echo 'no answer' >&2; exit 76";
    let parked = check_begun(partitions, then, &[], "parked", 1);
    assert_eq!(parked["error"], "in doubt: no answer");
}

on_one_and_on_four!(a_begun_command_with_a_plain_exit_code_is_what_it_says);
fn a_begun_command_with_a_plain_exit_code_is_what_it_says(partitions: u16) {
    check_begun(partitions, "exit 0", &[], "done", 1);
    check_begun(partitions, "exit 3", &[], "dead", 3);
}

on_one_and_on_four!(a_begun_command_whose_result_is_refused_is_parked);
fn a_begun_command_whose_result_is_refused_is_parked(partitions: u16) {
    let much = ["--max-result", "1000"];
    let parked = check_begun(partitions, "head -c 2000 /dev/zero", &much, "parked", 1);
    let error = parked["error"].as_str().unwrap();
    assert!(error.contains("more than 1000 bytes"), "more than the worker takes: {parked}");
    let more = ["--max-result", "3000000"];
    let parked = check_begun(partitions, "head -c 2000000 /dev/zero", &more, "parked", 1);
    let error = parked["error"].as_str().unwrap();
    assert!(error.contains("too_large"), "more than the queue takes: {parked}");
}

on_one_and_on_four!(a_command_that_has_not_begun_is_dead_when_its_result_is_refused);
fn a_command_that_has_not_begun_is_dead_when_its_result_is_refused(partitions: u16) {
    for (most, bytes, why) in [(1_000, 2_000, "more than"), (3_000_000, 2_000_000, "too_large")] {
        let broker = parking(partitions);
        let most = most.to_string();
        let run = format!("head -c {bytes} /dev/zero");
        let worker = Worker::start(&broker, &run, &["--max-result", &most]);
        let dead = state(&broker, "a", "dead");
        assert_eq!(worker.drain(), Some(0));
        assert_eq!(dead["attempts"], 1, "running it again would not help: {dead}");
        assert!(dead["error"].as_str().unwrap().contains(why), "{dead}");
    }
}

on_one_and_on_four!(begun_commands_that_a_second_signal_stops_are_parked);
fn begun_commands_that_a_second_signal_stops_are_parked(partitions: u16) {
    let broker = parking(partitions);
    let mut worker = Worker::start(&broker, &begins("exec sleep 1000"), &[]);
    until("the effect", || (effects(&broker) == 1).then_some(()));
    signal(worker.0.id(), Signal::TERM);
    until("the drain", || {
        // It takes no more: what is sent now stays.
        signal(worker.0.id(), Signal::TERM);
        worker.0.try_wait().unwrap()
    });
    let parked = state(&broker, "a", "parked");
    assert!(parked["error"].as_str().unwrap().contains("stopped by its worker"), "{parked}");
    assert_eq!(effects(&broker), 1);
}

on_one_and_on_four!(a_command_that_has_not_begun_has_failed_when_a_signal_ends_it);
fn a_command_that_has_not_begun_has_failed_when_a_signal_ends_it(partitions: u16) {
    let broker = parking(partitions);
    let worker = Worker::start(&broker, "kill -9 $$", &[]);
    let dead = state(&broker, "a", "dead");
    assert_eq!(dead["attempts"], 3, "{dead}");
    assert_eq!(worker.drain(), Some(0));
}

on_one_and_on_four!(what_is_printed_was_confirmed_and_the_last_attempt_is_called_dead);
fn what_is_printed_was_confirmed_and_the_last_attempt_is_called_dead(partitions: u16) {
    let broker = parking(partitions);
    let arguments = ["work", "orders", "--exec", "exit 3", "--idle", "3s", "-o", "json"];
    let told = broker.run(&arguments);
    assert_eq!(told.code, Some(0), "{told:?}");
    let lines: Vec<Value> =
        told.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended: Vec<&str> = lines.iter().filter_map(|line| line["ended"].as_str()).collect();
    assert_eq!(ended, ["failed", "failed", "dead"], "{told:?}");
}

#[test]
fn an_empty_command_is_refused_and_no_message_is_done() {
    let broker = Broker::start();
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    for exec in ["", "  "] {
        let error = broker.fails(2, &["work", "orders", "--exec", exec, "--idle", "1ms"]);
        assert!(error.contains("the command is empty"), "{error}");
    }
    state(&broker, "a", "ready");
}

on_one_and_on_four!(a_worker_ends_when_its_queue_is_deleted);
fn a_worker_ends_when_its_queue_is_deleted(partitions: u16) {
    let broker = Broker::start_of(partitions);
    broker.ok(&["queue", "create", "orders"]);
    broker.ok(&["send", "orders", "x", "--key", "a"]);
    let mut worker = Worker::start(&broker, "cat", &[]);
    state(&broker, "a", "done");
    broker.ok(&["queue", "rm", "orders", "--yes"]);
    let ended = until("the worker to end", || worker.0.try_wait().unwrap());
    assert_eq!(ended.code(), Some(3));
}
