//! Decisions from bytes. Mirrors `encode` line by line; refuses what it does not know.

use std::sync::Arc;

use bytes::Bytes;

use super::encode::tag;
use super::{Accepted, ClaimLease, Configured, Decision, Leased, Next, RedriveStarted};
use crate::codec::{BadBytes, Reader};
use crate::command::{Blob, Emit, QueueName};
use crate::config::{
    Config, DedupScope, Guarantee, OnDead, OnGroupDead, OnLost, Order, UndatedKeys,
};
use crate::content::Content;
use crate::ids::Time;
use crate::key::{Digest, Fingerprint};
use crate::limits;
use crate::record::{decode_blob, decode_error, decode_fence};

impl Decision {
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, BadBytes> {
        let tag = reader.u8("decision")?;
        match tag {
            tag::ACCEPTED => decode_accepted(reader),
            tag::LEASED => decode_leased(reader),
            tag::DONE..=tag::SAVED if tag != tag::LEASED => decode_under_lease(tag, reader),
            tag::DIED | tag::DISCARDED..=tag::RESOLVED => decode_to_key(tag, reader),
            _ => decode_administrative(tag, reader),
        }
    }
}

fn decode_under_lease(tag: u8, reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let digest = decode_digest(reader)?;
    let fence = decode_fence(reader)?;
    Ok(match tag {
        tag::DONE => {
            let result = decode_optional_blob(reader)?;
            let count = reader.count("emits")?;
            let emits = (0..count).map(|_| decode_emit(reader)).collect::<Result<_, _>>()?;
            Decision::Done { digest, fence, result, emits }
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
        tag::REDRIVE_STARTED => decode_redrive(reader)?,
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
        _ => return Err(BadBytes::Tag("decision", tag)),
    })
}

fn decode_accepted(reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let digest = decode_digest(reader)?;
    let seq = reader.number("seq")?;
    let queue = reader.u32("queue")?;
    let fingerprint = decode_fingerprint(reader)?;
    let due = reader.optional("due")?.map(Time);
    let ttl_at = decode_end(reader)?;
    let flags = reader.u8("claim")?;
    let claim = if flags & 1 != 0 {
        Some(ClaimLease {
            fence: decode_fence(reader)?,
            deadline: Time(reader.number("deadline")?),
            worker: reader.text("worker")?.into(),
            begun: flags & 2 != 0,
        })
    } else {
        None
    };
    let content = decode_content(reader)?;
    let accepted = Accepted { seq, queue, digest, fingerprint, content, due, ttl_at, claim };
    Ok(Decision::Accepted(Box::new(accepted)))
}

fn decode_leased(reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let queue = reader.u32("queue")?;
    let fence = decode_fence(reader)?;
    let deadline = Time(reader.number("deadline")?);
    let worker = reader.text("worker")?.into();
    let flags = reader.u8("receive")?;
    let receive = if flags & 1 != 0 { Some(decode_digest(reader)?) } else { None };
    let digests = decode_digests(reader)?;
    let finish = flags & 2 != 0;
    let leased = Leased { queue, fence, deadline, worker, receive, finish, digests };
    Ok(Decision::Leased(Box::new(leased)))
}

fn decode_redrive(reader: &mut Reader<'_>) -> Result<Decision, BadBytes> {
    let queue = reader.u32("queue")?;
    let job = decode_digest(reader)?;
    let id = reader.text("id")?.into();
    let error_contains = decode_error(reader)?;
    let group = decode_error(reader)?;
    let dead_before = decode_end(reader)?;
    let flags = reader.u8("redrive")?;
    let (dry_run, by_keys) = (flags & 1 != 0, flags & 2 != 0);
    let per_s = decode_optional_u32(reader)?;
    Ok(Decision::RedriveStarted(Box::new(RedriveStarted {
        queue,
        job,
        id,
        error_contains,
        group,
        dead_before,
        dry_run,
        per_s,
        by_keys,
    })))
}

pub(crate) fn decode_name(reader: &mut Reader<'_>) -> Result<QueueName, BadBytes> {
    let tenant = reader.text("tenant")?;
    let queue = reader.text("queue")?;
    QueueName::new(tenant, queue).map_err(|_| BadBytes::Bounds("queue name"))
}

pub(crate) fn decode_config(reader: &mut Reader<'_>) -> Result<Config, BadBytes> {
    Ok(Config {
        guarantee: choice(Guarantee::ALL, "guarantee", reader)?,
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
    })
}

fn choice<T: Copy>(all: &[T], what: &'static str, reader: &mut Reader<'_>) -> Result<T, BadBytes> {
    let number = reader.u8(what)?;
    all.get(usize::from(number)).copied().ok_or(BadBytes::Tag(what, number))
}

pub(crate) fn decode_emit(reader: &mut Reader<'_>) -> Result<Emit, BadBytes> {
    let queue = decode_name(reader)?;
    let name = reader.text("name")?.to_owned();
    let delay_ms = reader.optional("delay")?;
    Ok(Emit { queue, name, delay_ms, content: decode_content(reader)? })
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
    let mut fingerprint = Fingerprint { body, content_type: 0, group: 0, own: flags & 1 != 0 };
    if flags & 2 != 0 {
        fingerprint.content_type = u64::from_le_bytes(reader.fixed("fingerprint")?);
        fingerprint.group = u64::from_le_bytes(reader.fixed("fingerprint")?);
    }
    Ok(fingerprint)
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
