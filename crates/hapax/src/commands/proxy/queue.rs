//! The queue of a proxy: made where it is missing, and looked at where it is not.

use hapax_idempotency::Idempotency;
use hapax_wire::{Code, OnLost, QueueConfig};
use serde_json::json;

use super::{InDoubt, Proxy};
use crate::advice::Advice;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::say;
use crate::session::Session;

/// Headers of a response beside the body, in one result.
const HEADERS_BYTES: usize = 32 * 1_024;

/// The queue's rules; `None` where the broker is away and that is no reason not to start.
pub(super) async fn prepare(
    session: &Session,
    proxy: &Proxy,
    idempotency: &Idempotency,
) -> Result<Option<QueueConfig>, Failure> {
    let checked = match idempotency.check_queue().await {
        Err(error) if error.code() == Code::NoSuchQueue => {
            create(session, proxy).await?;
            idempotency.check_queue().await
        }
        checked => checked,
    };
    let (rules, wrong) = match checked {
        Ok(checked) => checked,
        Err(error) if proxy.fail_open && error.is_retryable() => {
            tracing::warn!(%error, "the broker is away: requests are passed on unprotected");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(wrong) = wrong.first() {
        return Err(unfit(proxy, wrong).next(create_by_hand(proxy)));
    }
    match (proxy.in_doubt, rules.on_lost == OnLost::Park) {
        (InDoubt::Park, false) => {
            let wrong = "its on_lost is redeliver: a key is free again when a proxy dies, and the \
                         upstream would be called twice";
            let next = format!(
                "{}\nor, if the upstream honours Idempotency-Key itself: --in-doubt retry",
                Advice::new("hapax queue set", &[&proxy.queue]).option("--on-lost", "park")
            );
            return Err(unfit(proxy, wrong).next(next));
        }
        (InDoubt::Retry, true) => say(format_args!(
            "the queue {} parks keys in doubt: --in-doubt retry frees those this proxy sees, but \
             not those of a proxy that dies",
            proxy.queue
        )),
        _ => {}
    }
    Ok(Some(rules))
}

fn unfit(proxy: &Proxy, wrong: &str) -> Failure {
    Failure::new(Exit::Usage, format!("the queue {} is not fit for this: {wrong}", proxy.queue))
}

async fn create(session: &Session, proxy: &Proxy) -> Result<(), Failure> {
    let config = json!({
        "on_lost": on_lost(proxy),
        "max_body_bytes": max_body_bytes(proxy),
    });
    match session.client.put_queue(&proxy.queue, &config.to_string(), None).await {
        Ok(_) => {
            say(format_args!("created the queue {}", proxy.queue));
            Ok(())
        }
        Err(error) => Err(Failure::from(error).next(create_by_hand(proxy))),
    }
}

fn create_by_hand(proxy: &Proxy) -> String {
    Advice::new("hapax queue create", &[&proxy.queue])
        .option("--on-lost", on_lost(proxy))
        .option("--max-body-bytes", &max_body_bytes(proxy).to_string())
        .to_string()
}

fn on_lost(proxy: &Proxy) -> &'static str {
    match proxy.in_doubt {
        InDoubt::Park => "park",
        InDoubt::Retry => "redeliver",
    }
}

fn max_body_bytes(proxy: &Proxy) -> u64 {
    let needed = proxy.response_max.saturating_add(HEADERS_BYTES);
    QueueConfig::default().max_body_bytes.max(needed as u64)
}
