//! Between the claim of a key and its handler: the layer tells the broker that it begins, and the
//! answer does not arrive. The rows of the table of docs/guides/http-idempotency.md about that.

use std::time::Duration;

use hapax_client::Client;
use hapax_idempotency::Outcome;
use hapax_wire::proto::{ResolveRetry, State, resolve_request::Resolution};
use tokio::task::JoinHandle;

use crate::shop::{Answered, Shop, builder, open_shop, request};
use hapax_testing::{Link, PATIENCE, TestQueue, in_time};

/// Enough for a broker that answers, on a busy machine.
const ENOUGH: Duration = Duration::from_secs(10);

/// A request whose begin is recorded by the broker, and whose answer stands still on its way.
struct Unanswered {
    broker: TestQueue,
    link: Link,
    shop: Shop,
    claim_key: String,
    asking: JoinHandle<Answered>,
}

impl Unanswered {
    async fn start(partitions: u16, lease: Duration, broker_timeout: Duration) -> Self {
        let broker = TestQueue::open(partitions, "http", r#"{"on_lost":"park"}"#).await;
        let link = broker.link().await;
        let client = Client::connect(&link.url).unwrap();
        let builder = builder(&client).lease(lease).broker_timeout(broker_timeout);
        let shop = Shop::open(builder);
        link.hold_answers();
        let asking = shop.asking(request("/status/200", "k"));
        let looking = async {
            loop {
                // What was said before the look is no answer to a begin that the look does not see.
                let said = link.answers();
                if let Some(claim_key) = begun(&broker).await {
                    return claim_key;
                }
                link.pass_answers(said);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let claim_key = in_time(looking).await;
        assert_eq!(shop.calls(), 0, "nobody was told that it may begin");
        Self { broker, link, shop, claim_key, asking }
    }

    /// What the client was told, who waited.
    async fn told(&mut self) -> Answered {
        let told = in_time(&mut self.asking).await.unwrap();
        assert_eq!((told.status, told.code().as_str()), (503, "unavailable"));
        assert_eq!(told.outcome, Some(Outcome::Unavailable));
        assert_eq!(self.shop.calls(), 0);
        told
    }
}

/// The key of the one claim there is, when it has begun.
async fn begun(broker: &TestQueue) -> Option<String> {
    let leased = broker.admin.browse("http", State::Leased, 1, "").await.unwrap();
    let claim_key = leased.messages.into_iter().next()?.key;
    let key = broker.key(&claim_key).await;
    key.history.iter().any(|event| event.event == "begun").then_some(claim_key)
}

on_each!(a_handler_is_called_after_a_begin_only_where_the_queue_parks);
async fn a_handler_is_called_after_a_begin_only_where_the_queue_parks(partitions: u16) {
    for (rules, parks) in [(r#"{"on_lost":"park"}"#, true), ("{}", false)] {
        let broker = TestQueue::open(partitions, "http", rules).await;
        // Of a shorter lease half could be over on a busy machine, and then it begins.
        let lease = Duration::from_secs(3_600);
        let shop = Shop::open(builder(&broker.client).lease(lease).broker_timeout(PATIENCE));
        let asking = shop.asking(request("/gate", "k"));
        shop.called(1).await;
        assert_eq!(begun(&broker).await.is_some(), parks);
        shop.counter.gate.add_permits(1);
        let told = in_time(asking).await.unwrap();
        assert_eq!((told.status, told.is_replayed()), (200, false));
        assert!(shop.ask(request("/gate", "k")).await.is_replayed());
    }
}

on_each!(a_begin_whose_answer_is_lost_with_its_connection_is_asked_for_again);
async fn a_begin_whose_answer_is_lost_with_its_connection_is_asked_for_again(partitions: u16) {
    let Unanswered { broker, link, shop, asking, .. } =
        Unanswered::start(partitions, PATIENCE, PATIENCE).await;
    link.cut();
    link.restore();
    let told = in_time(asking).await.unwrap();
    assert_eq!((told.status, told.is_replayed(), shop.calls()), (200, false, 1));
    assert!(open_shop(&broker).ask(request("/status/200", "k")).await.is_replayed());
}

on_each!(a_key_is_given_back_when_its_begin_is_not_answered_in_time);
async fn a_key_is_given_back_when_its_begin_is_not_answered_in_time(partitions: u16) {
    // Its lease would last for longer than this test does.
    let lease = Duration::from_secs(3_600);
    let mut unanswered = Unanswered::start(partitions, lease, ENOUGH).await;
    unanswered.told().await;
    let Unanswered { broker, link, shop, .. } = unanswered;
    link.cut();
    link.restore();
    assert!(shop.idempotency.drained(PATIENCE).await, "the broker can be reached again");
    assert_eq!((broker.stats().await.leased, broker.stats().await.parked), (0, 0));
    let told = shop.ask(request("/status/200", "k")).await;
    assert_eq!((told.status, told.is_replayed(), shop.calls()), (200, false, 1));
}

on_each!(a_begun_key_is_in_doubt_when_the_broker_is_away_for_longer_than_its_lease);
async fn a_begun_key_is_in_doubt_when_the_broker_is_away_for_longer_than_its_lease(
    partitions: u16,
) {
    let lease = Duration::from_secs(10);
    let mut unanswered = Unanswered::start(partitions, lease, ENOUGH).await;
    unanswered.link.disconnect();
    unanswered.told().await;
    let Unanswered { broker, link, shop, claim_key, .. } = unanswered;
    let parked = broker.admin.key(broker.named(&claim_key), PATIENCE).await.unwrap();
    assert_eq!(parked.state(), State::Parked, "nobody could tell that nothing was done");
    link.restore();
    assert!(shop.idempotency.drained(PATIENCE).await);
    let told = shop.ask(request("/status/200", "k")).await;
    assert_eq!((told.status, told.code().as_str(), shop.calls()), (409, "in_doubt", 0));
    let retry = Resolution::Retry(ResolveRetry {});
    broker.admin.resolve_key(broker.named(&claim_key), retry).await.unwrap();
    let told = shop.ask(request("/status/200", "k")).await;
    assert_eq!((told.status, told.is_replayed(), shop.calls()), (200, false, 1));
}
