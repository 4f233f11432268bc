//! Encodes decisions. `decode` mirrors this file line by line.

use std::sync::Arc;

use super::{Accepted, Configured, Decision, Leased, Next, RedriveStarted};
use crate::codec::Write;
use crate::command::{Blob, Emit, QueueName};
use crate::config::Config;
use crate::content::Content;
use crate::ids::Time;
use crate::key::{Digest, Fingerprint};
use crate::limits;
use crate::record::{encode_blob, encode_error, encode_fence};

pub(super) mod tag {
    pub(crate) const CONFIGURED: u8 = 1;
    pub(crate) const PAUSED: u8 = 2;
    pub(crate) const PURGE_STARTED: u8 = 3;
    pub(crate) const PURGED: u8 = 4;
    pub(crate) const ACCEPTED: u8 = 5;
    pub(crate) const LEASED: u8 = 6;
    pub(crate) const DONE: u8 = 7;
    pub(crate) const FAILED: u8 = 8;
    pub(crate) const LOST: u8 = 9;
    pub(crate) const RELEASED: u8 = 10;
    pub(crate) const EXTENDED: u8 = 11;
    pub(crate) const BEGUN: u8 = 12;
    pub(crate) const SAVED: u8 = 13;
    pub(crate) const DIED: u8 = 14;
    pub(crate) const REDRIVE_STARTED: u8 = 15;
    pub(crate) const REDRIVEN: u8 = 16;
    pub(crate) const DISCARDED: u8 = 17;
    pub(crate) const FORGOTTEN: u8 = 18;
    pub(crate) const RERUN: u8 = 19;
    pub(crate) const REPLAYED: u8 = 20;
    pub(crate) const RESOLVED: u8 = 21;
    pub(crate) const RELAYED: u8 = 22;
    pub(crate) const RELAY_RETRIED: u8 = 23;
    // Since 0.2. The first four extend kinds from above with fields those have no room for.
    pub(crate) const ACCEPTED_MORE: u8 = 24;
    pub(crate) const LEASED_STEPPED: u8 = 25;
    pub(crate) const DONE_MORE: u8 = 26;
    pub(crate) const REDRIVE_STARTED_MORE: u8 = 27;
    pub(crate) const PARKED: u8 = 28;
    pub(crate) const REDRIVE_CANCELLED: u8 = 29;
    pub(crate) const RELAY_REFUSED: u8 = 30;
    pub(crate) const REDRIVE_STARTED_ASKED: u8 = 31;
}

impl Decision {
    /// Appends the decision. `Counted` is not journaled and writes nothing. One match, so that the
    /// compiler notices a decision without bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Accepted(accepted) => encode_accepted(accepted, out),
            Self::Leased(leased) => encode_leased(leased, out),
            Self::Done { digest, fence, result, emits } => {
                let more = emits.iter().any(has_more);
                under_lease(if more { tag::DONE_MORE } else { tag::DONE }, digest, *fence, out);
                encode_optional_blob(result.as_ref(), out);
                out.number(emits.len() as u64);
                for emit in emits {
                    encode_emit(emit, out);
                    if more {
                        encode_emit_more(emit, out);
                    }
                }
            }
            Self::Failed { digest, fence, error, next } => {
                under_lease(tag::FAILED, digest, *fence, out);
                out.text(error);
                encode_next(*next, out);
            }
            Self::Lost { digest, fence, next } => {
                under_lease(tag::LOST, digest, *fence, out);
                encode_next(*next, out);
            }
            Self::Released { digest, fence, next } => {
                under_lease(tag::RELEASED, digest, *fence, out);
                encode_next(*next, out);
            }
            Self::Parked { digest, fence, error, next } => {
                under_lease(tag::PARKED, digest, *fence, out);
                out.text(error);
                encode_next(*next, out);
            }
            Self::Extended { digest, fence, deadline } => {
                under_lease(tag::EXTENDED, digest, *fence, out);
                out.number(deadline.0);
            }
            Self::Begun { digest, fence } => under_lease(tag::BEGUN, digest, *fence, out),
            Self::Saved { digest, fence, name, data } => {
                under_lease(tag::SAVED, digest, *fence, out);
                out.text(name);
                out.bytes(data);
            }
            Self::Died { digest, error } => {
                to_key(tag::DIED, digest, out);
                out.text(error);
            }
            Self::Discarded { digest } => to_key(tag::DISCARDED, digest, out),
            Self::Forgotten { digest, queue } => {
                to_key(tag::FORGOTTEN, digest, out);
                out.number((*queue).into());
            }
            Self::Rerun { digest } => to_key(tag::RERUN, digest, out),
            Self::Replayed { digest, queue, content, fingerprint } => {
                to_key(tag::REPLAYED, digest, out);
                out.number((*queue).into());
                encode_content(content, out);
                encode_fingerprint(fingerprint, out);
            }
            Self::Resolved { digest, done, result, next } => {
                to_key(tag::RESOLVED, digest, out);
                out.u8((*done).into());
                encode_optional_blob(result.as_ref(), out);
                encode_next(*next, out);
            }
            Self::Configured(configured) => encode_configured(configured, out),
            Self::Paused { queue, paused } => {
                out.u8(tag::PAUSED);
                out.number((*queue).into());
                out.u8((*paused).into());
            }
            Self::PurgeStarted { queue, below, keys, delete } => {
                out.u8(tag::PURGE_STARTED);
                out.number((*queue).into());
                out.number(*below);
                out.u8(u8::from(*keys) | u8::from(*delete) << 1);
            }
            Self::Purged { queue, digests, finished } => {
                out.u8(tag::PURGED);
                out.number((*queue).into());
                out.u8((*finished).into());
                encode_digests(digests, out);
            }
            Self::RedriveStarted(started) => encode_redrive(started, out),
            Self::Redriven { queue, job, digests, matched, cursor, done } => {
                out.u8(tag::REDRIVEN);
                out.number((*queue).into());
                out.fixed(&job.0);
                out.number(*matched);
                out.number(*cursor);
                out.u8((*done).into());
                encode_digests(digests, out);
            }
            Self::RedriveCancelled { queue, job } => {
                out.u8(tag::REDRIVE_CANCELLED);
                out.number((*queue).into());
                out.fixed(&job.0);
            }
            Self::RelayRefused { id, error, key } => {
                out.u8(tag::RELAY_REFUSED);
                out.number(*id);
                out.text(error);
                encode_error(key.as_deref(), out);
            }
            Self::Relayed { id } => {
                out.u8(tag::RELAYED);
                out.number(*id);
            }
            Self::RelayRetried { id, attempts, next_at } => {
                out.u8(tag::RELAY_RETRIED);
                out.number(*id);
                out.number((*attempts).into());
                out.number(next_at.0);
            }
            Self::Counted { .. } => {}
        }
    }
}

fn to_key(tag: u8, digest: &Digest, out: &mut Vec<u8>) {
    out.u8(tag);
    out.fixed(&digest.0);
}

fn under_lease(tag: u8, digest: &Digest, fence: crate::ids::Fence, out: &mut Vec<u8>) {
    to_key(tag, digest, out);
    encode_fence(fence, out);
}

fn encode_accepted(accepted: &Accepted, out: &mut Vec<u8>) {
    debug_assert!(accepted.claim.is_none() || accepted.due.is_none(), "a claim waits for nothing");
    debug_assert!(accepted.seq > 0, "numbers begin at one");
    let claim_id = accepted.claim.as_ref().and_then(|claim| claim.id);
    let more = claim_id.is_some() || accepted.dated_ahead.is_some();
    to_key(if more { tag::ACCEPTED_MORE } else { tag::ACCEPTED }, &accepted.digest, out);
    out.number(accepted.seq);
    out.number(accepted.queue.into());
    encode_fingerprint(&accepted.fingerprint, out);
    out.optional(accepted.due.map(|due| due.0));
    encode_end(accepted.ttl_at, out);
    out.u8(accepted.claim.as_ref().map_or(0, |claim| 1 | u8::from(claim.begun) << 1));
    if let Some(claim) = &accepted.claim {
        encode_fence(claim.fence, out);
        out.number(claim.deadline.0);
        out.text(&claim.worker);
    }
    encode_content(&accepted.content, out);
    if more {
        out.optional(accepted.dated_ahead.map(|dated| dated.0));
        out.u8(claim_id.is_some().into());
        if let Some(id) = claim_id {
            out.fixed(&id.0);
        }
    }
}

fn encode_leased(leased: &Leased, out: &mut Vec<u8>) {
    out.u8(if leased.step == 1 { tag::LEASED } else { tag::LEASED_STEPPED });
    if leased.step != 1 {
        out.number(leased.step.into());
    }
    out.number(leased.queue.into());
    encode_fence(leased.fence, out);
    out.number(leased.deadline.0);
    out.text(&leased.worker);
    out.u8(u8::from(leased.receive.is_some()) | u8::from(leased.finish) << 1);
    if let Some(receive) = &leased.receive {
        out.fixed(&receive.0);
    }
    encode_digests(&leased.digests, out);
}

fn encode_configured(configured: &Configured, out: &mut Vec<u8>) {
    out.u8(tag::CONFIGURED);
    out.number(configured.queue.into());
    encode_name(&configured.name, out);
    out.number(configured.version);
    encode_config(&configured.config, out);
}

fn encode_redrive(started: &RedriveStarted, out: &mut Vec<u8>) {
    let asked = started.asked.is_some();
    let more = asked || started.total.is_some() || started.dead_after.is_some();
    debug_assert!(more || started.missing.is_empty(), "what is missing is missing of a total");
    out.u8(match (asked, more) {
        (true, _) => tag::REDRIVE_STARTED_ASKED,
        (false, true) => tag::REDRIVE_STARTED_MORE,
        (false, false) => tag::REDRIVE_STARTED,
    });
    out.number(started.queue.into());
    out.fixed(&started.job.0);
    out.text(&started.id);
    encode_error(started.error_contains.as_deref(), out);
    encode_error(started.group.as_deref(), out);
    encode_end(started.dead_before, out);
    out.u8(u8::from(started.dry_run) | u8::from(started.by_keys) << 1);
    out.optional(started.per_s.map(u64::from));
    if more {
        out.optional(started.dead_after.map(|after| after.0));
        out.optional(started.total);
        encode_missing(&started.missing, out);
    }
    if let Some(asked) = &started.asked {
        out.fixed(&asked.0);
    }
}

pub(crate) fn encode_missing(missing: &[Arc<str>], out: &mut Vec<u8>) {
    debug_assert!(missing.len() <= limits::REDRIVE_KEYS_MAX, "more is not read back");
    out.number(missing.len() as u64);
    missing.iter().for_each(|key| out.text(key));
}

pub(crate) fn encode_name(name: &QueueName, out: &mut Vec<u8>) {
    out.text(&name.tenant);
    out.text(&name.queue);
}

pub(crate) fn encode_config(config: &Config, out: &mut Vec<u8>) {
    let more = if config.keep_bodies { CONFIG_MORE } else { 0 };
    for choice in [
        config.guarantee as u8 | more,
        config.order as u8,
        config.dedup_scope as u8,
        config.undated_keys as u8,
        config.on_dead as u8,
        config.on_group_dead as u8,
        config.on_lost as u8,
    ] {
        out.u8(choice);
    }
    out.optional(config.retention_ms);
    out.number(config.retry_horizon_ms);
    out.number(config.lease_ms);
    out.number(config.max_attempts.into());
    out.number(config.backoff_min_ms);
    out.number(config.backoff_max_ms);
    out.number(config.delay_ms);
    out.optional(config.ttl_ms);
    out.number(config.max_body_bytes);
    out.optional(config.max_messages);
    out.optional(config.max_bytes);
    out.optional(config.sends_per_s.map(u64::from));
    if more != 0 {
        out.u8(config.keep_bodies.into());
    }
}

/// In the first byte of a configuration: choices that 0.1 did not have follow its fields.
pub(super) const CONFIG_MORE: u8 = 0x80;

pub(crate) fn encode_emit(emit: &Emit, out: &mut Vec<u8>) {
    encode_name(&emit.queue, out);
    out.text(&emit.name);
    out.optional(emit.delay_ms);
    encode_content(&emit.content, out);
}

/// Whether an emit has fields that 0.1 did not know.
fn has_more(emit: &Emit) -> bool {
    emit.ttl_ms.is_some() || emit.fingerprint.is_some()
}

pub(crate) fn encode_emit_more(emit: &Emit, out: &mut Vec<u8>) {
    out.optional(emit.ttl_ms);
    out.u8(emit.fingerprint.is_some().into());
    if let Some(fingerprint) = &emit.fingerprint {
        encode_fingerprint(fingerprint, out);
    }
}

pub(crate) fn encode_content(content: &Content, out: &mut Vec<u8>) {
    let (bytes, lengths, headers) = content.parts();
    debug_assert!(usize::from(headers) <= limits::HEADERS_BYTES_MAX, "more is not read back");
    out.fixed(&lengths);
    out.number(headers.into());
    out.bytes(bytes);
}

pub(crate) fn encode_fingerprint(fingerprint: &Fingerprint, out: &mut Vec<u8>) {
    let has_parts = fingerprint.group != 0;
    out.u8(u8::from(fingerprint.own) | u8::from(has_parts) << 1);
    out.fixed(&fingerprint.body);
    if has_parts {
        encode_parts(fingerprint, out);
    }
}

/// The first eight bytes were the content type's in 0.1, and are no longer compared.
pub(crate) fn encode_parts(fingerprint: &Fingerprint, out: &mut Vec<u8>) {
    out.fixed(&[0; 8]);
    out.fixed(&fingerprint.group.to_le_bytes());
}

/// A time that may be `NEVER`.
pub(crate) fn encode_end(at: Time, out: &mut Vec<u8>) {
    out.optional((at != Time::NEVER).then_some(at.0));
}

pub(crate) fn encode_optional_blob(blob: Option<&Blob>, out: &mut Vec<u8>) {
    out.u8(blob.is_some().into());
    if let Some(blob) = blob {
        encode_blob(blob, out);
    }
}

fn encode_next(next: Next, out: &mut Vec<u8>) {
    let number = match next {
        Next::Ready => 0,
        Next::Delayed(_) => 1,
        Next::Dead => 2,
        Next::Parked => 3,
        Next::Freed => 4,
    };
    out.u8(number);
    if let Next::Delayed(due) = next {
        out.number(due.0);
    }
}

fn encode_digests(digests: &[Digest], out: &mut Vec<u8>) {
    out.number(digests.len() as u64);
    for digest in digests {
        out.fixed(&digest.0);
    }
}
