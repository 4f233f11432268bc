//! The queue of a proxy: created if it does not exist, otherwise checked.

use hapax_idempotency::Idempotency;
use hapax_wire::{Code, OnLost, QueueConfig};
use serde_json::json;

use super::{InDoubt, Proxy};
use crate::advice::Advice;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::say;
use crate::session::Session;

/// Space for the response headers beside the body in one result.
const HEADERS_BYTES: usize = 32 * 1_024;

/// The queue's configuration; `None` if the broker cannot be reached and `--fail-open` is given.
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
            tracing::warn!(%error, "the broker cannot be reached: requests are passed on \
                                    unprotected");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(wrong) = wrong.first() {
        return Err(unfit(proxy, wrong).next(create_by_hand(proxy)));
    }
    match (proxy.in_doubt, rules.on_lost == OnLost::Park) {
        (InDoubt::Park, false) => {
            let wrong = "its on_lost is redeliver, so a key is freed when a proxy dies and the \
                         upstream could be called twice";
            let next = format!(
                "{}\nor, if the upstream supports Idempotency-Key itself: --in-doubt retry",
                Advice::new("hapax queue set", &[&proxy.queue]).option("--on-lost", "park")
            );
            return Err(unfit(proxy, wrong).next(next));
        }
        (InDoubt::Retry, true) => say(format_args!(
            "the queue {} has on_lost = park: --in-doubt retry frees the keys that this proxy \
             finds in doubt, but those of a proxy that dies are parked",
            proxy.queue
        )),
        _ => {}
    }
    Ok(Some(rules))
}

fn unfit(proxy: &Proxy, wrong: &str) -> Failure {
    Failure::new(Exit::Usage, format!("the queue {} cannot be used: {wrong}", proxy.queue))
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
