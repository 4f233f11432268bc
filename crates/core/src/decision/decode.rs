//! Decodes decisions. Mirrors `encode` line by line; refuses unknown tags and values.

use std::sync::Arc;

use bytes::Bytes;

use super::encode::{CONFIG_MORE, tag};
use super::{Accepted, ClaimLease, Configured, Decision, Leased, Next, RedriveStarted};
use crate::codec::{BadBytes, Reader};
use crate::command::{Blob, Emit, QueueName};
use crate::config::{
    Config, DedupScope, Guarantee, OnDead, OnGroupDead, OnLost, Order, UndatedKeys,
};
use crate::content::Content;
use crate::ids::{Fence, Time};
use crate::key::{Digest, Fingerprint};
use crate::limits;
use crate::record::{decode_blob, decode_error, decode_fence};

impl Decision {
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, BadBytes> {
        let tag = reader.u8("decision")?;
        match tag {
            tag::ACCEPTED | tag::ACCEPTED_MORE => decode_accepted(tag, reader),
            tag::LEASED | tag::LEASED_STEPPED => decode_leased(tag, reader),
            tag::DONE..=tag::SAVED | tag::DONE_MORE | tag::PARKED => {
                decode_under_lease(tag, reader)
            }
            tag::DIED | tag::DISCARDED..=tag::RESOLVED => decode_to_key(tag, reader),
            _ => decode_administrative(tag, reader),
        }
    }
}

fn decode_under_lease(tag: u8, reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let digest = decode_digest(reader)?;
    let fence = decode_fence(reader)?;
    Ok(match tag {
        tag::DONE | tag::DONE_MORE => {
            let result = decode_optional_blob(reader)?;
            let count = reader.count("emits")?;
            let mut emits = Vec::new();
            for _ in 0..count {
                let mut emit = decode_emit(reader)?;
                if tag == tag::DONE_MORE {
                    decode_emit_more(&mut emit, reader)?;
                }
                emits.push(emit);
            }
            Decision::Done { digest, fence, result, emits }
        }
        tag::PARKED => {
            let error = reader.text("error")?.into();
            Decision::Parked { digest, fence, error, next: decode_next(reader)? }
        }
        tag::FAILED => {
            let error = reader.text("error")?.into();
            Decision::Failed { digest, fence, error, next: decode_next(reader)? }
        }
        tag::LOST => Decision::Lost { digest, fence, next: decode_next(reader)? },
        tag::RELEASED => Decision::Released { digest, fence, next: decode_next(reader)? },
        tag::EXTENDED => {
            Decision::Extended { digest, fence, deadline: Time(reader.number("deadline")?) }
        }
        tag::BEGUN => Decision::Begun { digest, fence },
        tag::SAVED => {
            let name = reader.text("name")?.into();
            let data = Bytes::copy_from_slice(reader.bytes("data")?);
            Decision::Saved { digest, fence, name, data }
        }
        _ => return Err(BadBytes::Tag("decision", tag)),
    })
}

fn decode_to_key(tag: u8, reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let digest = decode_digest(reader)?;
    Ok(match tag {
        tag::DIED => Decision::Died { digest, error: reader.text("error")?.into() },
        tag::DISCARDED => Decision::Discarded { digest },
        tag::FORGOTTEN => Decision::Forgotten { digest, queue: reader.u32("queue")? },
        tag::RERUN => Decision::Rerun { digest },
        tag::REPLAYED => Decision::Replayed {
            digest,
            queue: reader.u32("queue")?,
            content: decode_content(reader)?,
            fingerprint: decode_fingerprint(reader)?,
        },
        tag::RESOLVED => Decision::Resolved {
            digest,
            done: reader.u8("done")? != 0,
            result: decode_optional_blob(reader)?,
            next: decode_next(reader)?,
        },
        _ => return Err(BadBytes::Tag("decision", tag)),
    })
}

fn decode_administrative(tag: u8, reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    Ok(match tag {
        tag::CONFIGURED => {
            let queue = reader.u32("queue")?;
            let name = decode_name(reader)?;
            let version = reader.number("version")?;
            let config = decode_config(reader)?;
            Decision::Configured(Box::new(Configured { queue, name, config, version }))
        }
        tag::PAUSED => {
            let queue = reader.u32("queue")?;
            Decision::Paused { queue, paused: reader.u8("paused")? != 0 }
        }
        tag::PURGE_STARTED => {
            let queue = reader.u32("queue")?;
            let below = reader.number("below")?;
            let flags = reader.u8("purge")?;
            Decision::PurgeStarted { queue, below, keys: flags & 1 != 0, delete: flags & 2 != 0 }
        }
        tag::PURGED => {
            let queue = reader.u32("queue")?;
            let finished = reader.u8("finished")? != 0;
            Decision::Purged { queue, finished, digests: decode_digests(reader)? }
        }
        tag::REDRIVE_STARTED | tag::REDRIVE_STARTED_MORE | tag::REDRIVE_STARTED_ASKED => {
            decode_redrive(tag, reader)?
        }
        tag::REDRIVE_CANCELLED => {
            let queue = reader.u32("queue")?;
            Decision::RedriveCancelled { queue, job: decode_digest(reader)? }
        }
        tag::REDRIVEN => {
            let queue = reader.u32("queue")?;
            let job = decode_digest(reader)?;
            let matched = reader.number("matched")?;
            let cursor = reader.number("cursor")?;
            let done = reader.u8("done")? != 0;
            let digests = decode_digests(reader)?;
            Decision::Redriven { queue, job, digests, matched, cursor, done }
        }
        tag::RELAYED => Decision::Relayed { id: reader.number("relay")? },
        tag::RELAY_RETRIED => {
            let id = reader.number("relay")?;
            let attempts = reader.u32("attempts")?;
            Decision::RelayRetried { id, attempts, next_at: Time(reader.number("next")?) }
        }
        tag::RELAY_REFUSED => {
            let id = reader.number("relay")?;
            let error = reader.text("error")?.into();
            Decision::RelayRefused { id, error, key: decode_error(reader)? }
        }
        _ => return Err(BadBytes::Tag("decision", tag)),
    })
}

fn decode_accepted(tag: u8, reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let digest = decode_digest(reader)?;
    let seq = reader.number("seq")?;
    let queue = reader.u32("queue")?;
    let fingerprint = decode_fingerprint(reader)?;
    let due = reader.optional("due")?.map(Time);
    let ttl_at = decode_end(reader)?;
    let flags = reader.u8("claim")?;
    let mut claim = if flags & 1 != 0 {
        Some(ClaimLease {
            fence: decode_fence(reader)?,
            deadline: Time(reader.number("deadline")?),
            worker: reader.text("worker")?.into(),
            begun: flags & 2 != 0,
            id: None,
        })
    } else {
        None
    };
    let content = decode_content(reader)?;
    let mut dated_ahead = None;
    if tag == tag::ACCEPTED_MORE {
        dated_ahead = reader.optional("dated")?.map(Time);
        let has_id = reader.u8("claim id")? != 0;
        let id = if has_id { Some(decode_digest(reader)?) } else { None };
        match (&mut claim, id) {
            (Some(claim), id) => claim.id = id,
            (None, None) => {}
            (None, Some(_)) => return Err(BadBytes::Bounds("claim id")),
        }
    }
    Ok(Decision::Accepted(Box::new(Accepted {
        seq,
        queue,
        digest,
        fingerprint,
        content,
        due,
        ttl_at,
        claim,
        dated_ahead,
    })))
}

fn decode_leased(tag: u8, reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let step = if tag == tag::LEASED_STEPPED { reader.number("step")? } else { 1 };
    let step = u16::try_from(step).ok().filter(|step| *step > 0);
    let step = step.ok_or(BadBytes::Bounds("step"))?;
    let queue = reader.u32("queue")?;
    let fence = decode_fence(reader)?;
    let deadline = Time(reader.number("deadline")?);
    let worker = reader.text("worker")?.into();
    let flags = reader.u8("receive")?;
    let receive = if flags & 1 != 0 { Some(decode_digest(reader)?) } else { None };
    let digests = decode_digests(reader)?;
    let finish = flags & 2 != 0;
    let leased = Leased { queue, fence, deadline, worker, receive, finish, digests, step };
    // Every fence of the receive must be valid.
    let last = leased.fence.counter().saturating_add(leased.digests.len() as u64 * u64::from(step));
    if last >= 1 << Fence::COUNTER_BITS {
        return Err(BadBytes::Bounds("fence"));
    }
    Ok(Decision::Leased(Box::new(leased)))
}

fn decode_redrive(tag: u8, reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let queue = reader.u32("queue")?;
    let job = decode_digest(reader)?;
    let id = reader.text("id")?.into();
    let error_contains = decode_error(reader)?;
    let group = decode_error(reader)?;
    let dead_before = decode_end(reader)?;
    let flags = reader.u8("redrive")?;
    let (dry_run, by_keys) = (flags & 1 != 0, flags & 2 != 0);
    let per_s = decode_optional_u32(reader)?;
    let (mut dead_after, mut total, mut missing) = (None, None, Vec::new());
    if tag != tag::REDRIVE_STARTED {
        dead_after = reader.optional("dead after")?.map(Time);
        total = reader.optional("total")?;
        missing = decode_missing(reader)?;
    }
    let is_asked = tag == tag::REDRIVE_STARTED_ASKED;
    let asked = if is_asked { Some(decode_digest(reader)?) } else { None };
    Ok(Decision::RedriveStarted(Box::new(RedriveStarted {
        queue,
        job,
        id,
        error_contains,
        group,
        dead_before,
        dead_after,
        dry_run,
        per_s,
        by_keys,
        total,
        missing,
        asked,
    })))
}

pub(crate) fn decode_missing(reader: &mut Reader<'_>) -> Result<Vec<Arc<str>>, BadBytes> {
    let count = reader.count("missing")?;
    if count > limits::REDRIVE_KEYS_MAX {
        return Err(BadBytes::Bounds("missing"));
    }
    (0..count).map(|_| Ok(reader.text("missing")?.into())).collect()
}

pub(crate) fn decode_name(reader: &mut Reader<'_>) -> Result<QueueName, BadBytes> {
    let tenant = reader.text("tenant")?;
    let queue = reader.text("queue")?;
    QueueName::new(tenant, queue).map_err(|_| BadBytes::Bounds("queue name"))
}

pub(crate) fn decode_config(reader: &mut Reader<'_>) -> Result<Config, BadBytes> {
    let first = reader.u8("guarantee")?;
    let guarantee = Guarantee::ALL.get(usize::from(first & !CONFIG_MORE)).copied();
    let mut config = Config {
        guarantee: guarantee.ok_or(BadBytes::Tag("guarantee", first))?,
        order: choice(Order::ALL, "order", reader)?,
        dedup_scope: choice(DedupScope::ALL, "dedup_scope", reader)?,
        undated_keys: choice(UndatedKeys::ALL, "undated_keys", reader)?,
        on_dead: choice(OnDead::ALL, "on_dead", reader)?,
        on_group_dead: choice(OnGroupDead::ALL, "on_group_dead", reader)?,
        on_lost: choice(OnLost::ALL, "on_lost", reader)?,
        retention_ms: reader.optional("retention")?,
        retry_horizon_ms: reader.number("retry horizon")?,
        lease_ms: reader.number("lease")?,
        max_attempts: reader.u32("max attempts")?,
        backoff_min_ms: reader.number("backoff")?,
        backoff_max_ms: reader.number("backoff")?,
        delay_ms: reader.number("delay")?,
        ttl_ms: reader.optional("ttl")?,
        max_body_bytes: reader.number("max body")?,
        max_messages: reader.optional("max messages")?,
        max_bytes: reader.optional("max bytes")?,
        sends_per_s: decode_optional_u32(reader)?,
        keep_bodies: false,
    };
    if first & CONFIG_MORE != 0 {
        config.keep_bodies = reader.u8("keep bodies")? != 0;
    }
    Ok(config)
}

fn choice<T: Copy>(all: &[T], what: &'static str, reader: &mut Reader<'_>) -> Result<T, BadBytes> {
    let number = reader.u8(what)?;
    all.get(usize::from(number)).copied().ok_or(BadBytes::Tag(what, number))
}

pub(crate) fn decode_emit(reader: &mut Reader<'_>) -> Result<Emit, BadBytes> {
    let queue = decode_name(reader)?;
    let name = reader.text("name")?.to_owned();
    let delay_ms = reader.optional("delay")?;
    let content = decode_content(reader)?;
    Ok(Emit { queue, name, delay_ms, content, ttl_ms: None, fingerprint: None })
}

pub(crate) fn decode_emit_more(emit: &mut Emit, reader: &mut Reader<'_>) -> Result<(), BadBytes> {
    emit.ttl_ms = reader.optional("ttl")?;
    if reader.u8("fingerprint")? != 0 {
        emit.fingerprint = Some(decode_fingerprint(reader)?);
    }
    Ok(())
}

pub(crate) fn decode_content(reader: &mut Reader<'_>) -> Result<Arc<Content>, BadBytes> {
    let lengths = reader.fixed("content")?;
    let headers = u16::try_from(reader.number("headers")?)
        .ok()
        .filter(|len| usize::from(*len) <= limits::HEADERS_BYTES_MAX)
        .ok_or(BadBytes::Bounds("headers"))?;
    let bytes = reader.bytes("content")?;
    Content::from_parts(bytes, lengths, headers).map(Arc::new).ok_or(BadBytes::Bounds("content"))
}

pub(crate) fn decode_fingerprint(reader: &mut Reader<'_>) -> Result<Fingerprint, BadBytes> {
    let flags = reader.u8("fingerprint")?;
    let body = reader.fixed("fingerprint")?;
    let group = if flags & 2 != 0 { decode_parts(reader)? } else { 0 };
    Ok(Fingerprint { body, group, own: flags & 1 != 0 })
}

/// The group's part. The content type's part, which 0.1 compared, is skipped.
pub(crate) fn decode_parts(reader: &mut Reader<'_>) -> Result<u64, BadBytes> {
    reader.fixed::<8>("content type")?;
    Ok(u64::from_le_bytes(reader.fixed("group")?))
}

pub(crate) fn decode_end(reader: &mut Reader<'_>) -> Result<Time, BadBytes> {
    Ok(reader.optional("end")?.map_or(Time::NEVER, Time))
}

pub(crate) fn decode_optional_blob(reader: &mut Reader<'_>) -> Result<Option<Blob>, BadBytes> {
    if reader.u8("blob")? == 0 { Ok(None) } else { decode_blob(reader).map(Some) }
}

pub(crate) fn decode_digest(reader: &mut Reader<'_>) -> Result<Digest, BadBytes> {
    Ok(Digest(reader.fixed("digest")?))
}

pub(crate) fn decode_optional_u32(reader: &mut Reader<'_>) -> Result<Option<u32>, BadBytes> {
    let value = reader.optional("number")?;
    value.map(u32::try_from).transpose().map_err(|_| BadBytes::Bounds("number"))
}

fn decode_next(reader: &mut Reader<'_>) -> Result<Next, BadBytes> {
    Ok(match reader.u8("next")? {
        0 => Next::Ready,
        1 => Next::Delayed(Time(reader.number("due")?)),
        2 => Next::Dead,
        3 => Next::Parked,
        4 => Next::Freed,
        other => return Err(BadBytes::Tag("next", other)),
    })
}

fn decode_digests(reader: &mut Reader<'_>) -> Result<Vec<Digest>, BadBytes> {
    let count = reader.count("digests")?;
    (0..count).map(|_| decode_digest(reader)).collect()
}
