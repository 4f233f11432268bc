//! Answers in a few words.

use hapax_core::*;

pub(crate) fn is_refusal(answer: &str) -> bool {
    let refusals = ["invalid", "no_such", "refused", "over_quota", "store_full", "lease_lost"];
    refusals.iter().any(|refusal| answer.starts_with(refusal))
}

pub(crate) fn outcome(outcome: &Outcome, fields: &[String], now: Time, in_detail: bool) -> String {
    match outcome {
        Outcome::Configured { version, created: true } => format!("created v{version}"),
        Outcome::Configured { version, created: false } => format!("changed v{version}"),
        Outcome::Queue(view) => queue(view, fields, now),
        Outcome::Sent(answer) | Outcome::Claimed(answer) => self::answer(answer, now, in_detail),
        Outcome::Received(_) => unreachable!("the script tells deliveries itself"),
        Outcome::Settled(settled) => self::settled(settled, now, in_detail),
        Outcome::Key(view) => key(view, fields, now),
        Outcome::Messages { messages, next } => {
            let mut told: Vec<String> = messages.iter().map(message).collect();
            told.extend(next.map(|_| "more".to_owned()));
            if told.is_empty() { "none".into() } else { told.join(" ") }
        }
        Outcome::Redrive(view) => {
            let done = if view.done { " done" } else { "" };
            let dry = if view.dry_run { " dry" } else { "" };
            let cancelled = if view.cancelled { " cancelled" } else { "" };
            let mut told =
                format!("matched={} moved={}{done}{cancelled}{dry}", view.matched, view.moved);
            if fields.iter().any(|field| field == "total") {
                told += &format!(" total={}", view.total.unwrap_or_default());
            }
            if fields.iter().any(|field| field == "missing") {
                told += &format!(" missing={}", view.missing.join(","));
            }
            told
        }
        Outcome::Ok => "ok".into(),
        Outcome::Refused(refusal) => self::refusal(refusal),
    }
}

fn refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Invalid(invalid) => format!("invalid {invalid:?}"),
        Refusal::InvalidConfig(invalid) => format!("invalid {}", invalid.field),
        Refusal::NoSuchQueue => "no_such_queue".into(),
        Refusal::NoSuchKey => "no_such_key".into(),
        Refusal::VersionChanged(version) => format!("refused version={version}"),
        Refusal::QueueExists => "refused exists".into(),
        Refusal::Conflict(differs) => format!("refused conflict {}", parts(differs)),
        Refusal::TooManyQueues(_) => "refused too_many_queues".into(),
        Refusal::TooManyRedrives(count) => format!("refused redrives={count}"),
        Refusal::OtherRedrive => "refused other_redrive".into(),
        Refusal::StoreFull => "store_full".into(),
    }
}

pub(crate) fn answer(answer: &Answer, now: Time, in_detail: bool) -> String {
    match answer {
        Answer::Invalid(invalid) => format!("invalid {invalid:?}"),
        Answer::NoSuchQueue => "no_such_queue".into(),
        Answer::Conflict { differs, .. } => format!("conflict {}", parts(differs)),
        Answer::Done(finished) => {
            let remembered =
                if in_detail { until(Some(finished.remembered_until), now) } else { "".into() };
            format!("done{}{remembered}", result(finished.result.as_ref()))
        }
        Answer::Dead { error, discarded: true, .. } => format!("discarded {error}"),
        Answer::Dead { error, .. } => format!("dead {error}"),
        Answer::Parked { attempts, .. } => format!("parked attempts={attempts}"),
        Answer::InFlight(flight) => {
            let deadline = if in_detail { until(flight.deadline, now) } else { "".into() };
            let (place, attempts) = (flight.place.as_str(), flight.attempts);
            format!("in_flight {place} attempts={attempts}{deadline}")
        }
        Answer::TooOld { .. } => "too_old".into(),
        Answer::UndatedKey => "undated_key".into(),
        Answer::OverQuota { quota, retry_after_ms } => {
            let quota = format!("{quota:?}").to_lowercase();
            let retry = if in_detail { format!(" in={retry_after_ms}ms") } else { "".into() };
            format!("over_quota {quota}{retry}")
        }
        Answer::StoreFull => "store_full".into(),
        Answer::Accepted { place, .. } => format!("accepted {}", place.as_str()),
        Answer::Fresh(fresh) => {
            let deadline = if in_detail { until(Some(fresh.deadline), now) } else { "".into() };
            let saved = &fresh.recovery_points;
            let saved = if saved.is_empty() { "".into() } else { format!(" {}", points(saved)) };
            format!("fresh{deadline}{saved}")
        }
    }
}

/// The id that an answer names.
pub(crate) fn id(answer: &Answer) -> Option<MessageId> {
    match answer {
        Answer::Conflict { id, .. }
        | Answer::Dead { id, .. }
        | Answer::Parked { id, .. }
        | Answer::Accepted { id, .. } => Some(*id),
        Answer::Fresh(fresh) => Some(fresh.id),
        Answer::Done(finished) => Some(finished.id),
        Answer::InFlight(flight) => Some(flight.id),
        _ => None,
    }
}

fn settled(settled: &Settled, now: Time, in_detail: bool) -> String {
    match settled {
        Settled::Ok { place, deadline } => {
            let deadline = if in_detail { until(*deadline, now) } else { "".into() };
            format!("ok {}{deadline}", place.as_str())
        }
        Settled::LeaseLost { place, result } => {
            let place = place.map_or_else(String::new, |place| format!(" {}", place.as_str()));
            format!("lease_lost{place}{}", self::result(result.as_ref()))
        }
        Settled::Invalid(invalid) => format!("invalid {invalid:?}"),
        Settled::NoSuchQueue { emit } => format!("no_such_queue emit={emit}"),
        Settled::RelayFull => "refused relay_full".into(),
    }
}

fn parts(differs: &[Differs]) -> String {
    let parts = differs.iter().map(|part| match part {
        Differs::Body => "body",
        Differs::Group => "group",
        Differs::Fingerprint => "fingerprint",
    });
    parts.collect::<Vec<_>>().join(",")
}

fn result(result: Option<&Blob>) -> String {
    let body = result.map(|blob| String::from_utf8_lossy(&blob.body));
    body.map_or_else(String::new, |body| format!(" {body}"))
}

/// How far a time is away.
fn until(time: Option<Time>, now: Time) -> String {
    match time {
        None => String::new(),
        Some(Time::NEVER) => " in=never".into(),
        Some(time) => format!(" in={}", length(time.since(now))),
    }
}

fn length(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let fits = units.into_iter().find(|(unit, _)| ms.is_multiple_of(*unit)).unwrap_or((1, "ms"));
    if ms == 0 { "0".into() } else { format!("{}{}", ms / fits.0, fits.1) }
}

pub(crate) fn delivery(key: &str, delivery: &Delivery, before: bool) -> String {
    let mut told = format!("{key}#{}", delivery.attempt);
    if delivery.generation > 0 {
        told += &format!("g{}", delivery.generation);
    }
    if before {
        told += "=";
    }
    if !delivery.recovery_points.is_empty() {
        told += &points(&delivery.recovery_points);
    }
    told
}

fn points(points: &std::collections::BTreeMap<String, bytes::Bytes>) -> String {
    let points =
        points.iter().map(|(name, data)| format!("{name}={}", String::from_utf8_lossy(data)));
    format!("{{{}}}", points.collect::<Vec<_>>().join(","))
}

fn message(view: &KeyView) -> String {
    let key = view.key.as_deref().map(ToOwned::to_owned);
    key.unwrap_or_else(|| format!("-{}", body(view)))
}

fn body(view: &KeyView) -> String {
    let content = view.content.as_ref();
    content.map(|it| String::from_utf8_lossy(it.body()).into_owned()).unwrap_or_default()
}

/// The fields that the line asks for; where the key is, if it asks for none.
fn key(view: &KeyView, fields: &[String], now: Time) -> String {
    let record = &view.record;
    if fields.is_empty() {
        return format!("{} attempts={}", view.place.as_str(), record.attempts);
    }
    let told = fields.iter().map(|field| match field.as_str() {
        // Duplicates are not journaled: only a process that lives on can tell of them.
        "history" => {
            let events = view.history.iter().filter(|event| event.what != What::Duplicate);
            format!("history={}", events.map(event).collect::<Vec<_>>().join(","))
        }
        "everything" => {
            let events = view.history.iter().map(event);
            format!("everything={}", events.collect::<Vec<_>>().join(","))
        }
        "events" => format!("events={}", view.history.len()),
        "generation" => format!("generation={}", record.generation),
        "duplicates" => format!("duplicates={}", record.duplicates),
        "losses" => format!("losses={}", record.losses),
        "attempts" => format!("attempts={}", record.attempts),
        "worker" => format!("worker={}", record.worker),
        "error" => format!("error={}", record.error.as_deref().unwrap_or("-")),
        "body" => format!("body={}", body(view)),
        "result" => format!("result={}", result(record.result.as_ref()).trim()),
        "points" => format!("points={}", points(&view.recovery_points)),
        "age" => format!("age={}", length(now.since(record.accepted_at))),
        "took" => {
            let (leased, finished) = (record.leased_at, record.finished_at);
            let leased = length(leased.since(record.accepted_at));
            format!("leased=+{leased} finished=+{}", length(finished.since(record.accepted_at)))
        }
        "remembered" => format!("remembered{}", until(Some(record.expires_at), now)),
        other => panic!("a key has no {other}"),
    });
    told.collect::<Vec<_>>().join(" ")
}

/// `failed:boom@w1`: what happened, its detail, who did it.
fn event(event: &Event) -> String {
    let mut told = event.what.as_str().to_owned();
    if !event.detail.is_empty() {
        told += &format!(":{}", event.detail);
    }
    if !event.worker.is_empty() {
        told += &format!("@{}", event.worker);
    }
    told
}

fn queue(view: &QueueView, fields: &[String], now: Time) -> String {
    let stats = &view.stats;
    let told = fields.iter().map(|field| {
        let count = match field.as_str() {
            "ready" => stats.ready,
            "held" => stats.held,
            "delayed" => stats.delayed,
            "leased" => stats.leased,
            "parked" => stats.parked,
            "dead" => stats.dead,
            "keys" => stats.keys,
            "bytes" => stats.bytes,
            "sent" => stats.sent_total,
            "duplicates" => stats.duplicate_total,
            "done" => stats.done_total,
            "failed" => stats.failed_total,
            "lost" => stats.lease_lost_total,
            "paused" => return format!("paused={}", view.paused),
            "version" => view.version,
            "oldest" => {
                let age = view.oldest_ready_at.map(|oldest| length(now.since(oldest)));
                return format!("oldest={}", age.as_deref().unwrap_or("-"));
            }
            other => panic!("a queue has no {other}"),
        };
        format!("{field}={count}")
    });
    told.collect::<Vec<_>>().join(" ")
}
