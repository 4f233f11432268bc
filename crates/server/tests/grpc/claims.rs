//! Claims, by calls and on the stream.

use std::collections::HashSet;
use std::time::Duration;

use hapax_server::options::Limits;
use hapax_testing::in_time;
use hapax_wire::proto::hapax_client::HapaxClient;
use hapax_wire::proto::settle::Verb;
use hapax_wire::proto::{self, AnswerKind, ClaimRequest, SettleKind, State};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use crate::broker::{Broker, code, refusal, settle};

/// A Claims stream.
struct Claims {
    up: mpsc::Sender<proto::ClaimsFrame>,
    down: Streaming<proto::ClaimsReply>,
    claimed: Vec<proto::ClaimReply>,
    settled: Vec<proto::SettleAnswer>,
}

impl Claims {
    async fn open(broker: &Broker) -> Self {
        Self::open_by(broker.client.clone()).await
    }

    /// On a connection of its own that takes a frame or two and is not read from.
    async fn open_narrow(broker: &Broker) -> Self {
        let narrow = Endpoint::from_shared(broker.url()).unwrap();
        let narrow = narrow.initial_stream_window_size(65_535).connect_lazy();
        Self::open_by(HapaxClient::new(narrow)).await
    }

    async fn open_by(mut client: HapaxClient<tonic::transport::Channel>) -> Self {
        let (up, frames) = mpsc::channel(4);
        let down = client.claims(ReceiverStream::new(frames)).await.unwrap().into_inner();
        Self { up, down, claimed: Vec::new(), settled: Vec::new() }
    }

    async fn say(&self, frame: proto::ClaimsFrame) {
        in_time(self.up.send(frame)).await.unwrap();
    }

    async fn claim(&self, queue: &str, claims: Vec<ClaimRequest>) {
        let queue = queue.to_owned();
        self.say(proto::ClaimsFrame { queue, claims, ..Default::default() }).await;
    }

    async fn settle(&self, queue: &str, settles: Vec<proto::Settle>) {
        let queue = queue.to_owned();
        self.say(proto::ClaimsFrame { queue, settles, ..Default::default() }).await;
    }

    async fn leave(&self, numbers: Vec<u64>) {
        self.say(proto::ClaimsFrame { leave: numbers, ..Default::default() }).await;
    }

    async fn take(&mut self) -> Result<(), Status> {
        let reply = in_time(self.down.next()).await.unwrap_or_else(|| Err(Status::ok("end")))?;
        assert!(!reply.claims.is_empty() || !reply.settled.is_empty(), "a frame says something");
        self.claimed.extend(reply.claims);
        self.settled.extend(reply.settled);
        Ok(())
    }

    /// The next so many answers to claims, by their references.
    async fn claimed(&mut self, count: usize) -> Vec<proto::ClaimReply> {
        while self.claimed.len() < count {
            self.take().await.unwrap();
        }
        let mut claimed: Vec<_> = self.claimed.drain(..count).collect();
        claimed.sort_by_key(number);
        claimed
    }

    async fn settled(&mut self, count: usize) -> Vec<proto::SettleAnswer> {
        while self.settled.len() < count {
            self.take().await.unwrap();
        }
        let mut settled: Vec<_> = self.settled.drain(..count).collect();
        settled.sort_by_key(|answer| answer.r#ref);
        settled
    }

    async fn one(&mut self, queue: &str, claim: ClaimRequest) -> proto::ClaimReply {
        self.claim(queue, vec![claim]).await;
        self.claimed(1).await.remove(0)
    }
}

fn claim(number: u64, key: &str) -> ClaimRequest {
    ClaimRequest {
        r#ref: number,
        key: key.to_owned(),
        body: "17 euro".into(),
        claim_id: format!("{key} {number}"),
        ..Default::default()
    }
}

fn waiting(number: u64, key: &str) -> ClaimRequest {
    ClaimRequest { wait_ms: 50_000, ..claim(number, key) }
}

fn done(number: u64, lease: &bytes::Bytes, result: &'static str) -> proto::Settle {
    let result = Some(proto::Blob { body: result.into(), content_type: String::new() });
    settle(number, lease, Verb::Done(proto::Done { result, emits: Vec::new() }))
}

fn answer(reply: &proto::ClaimReply) -> &proto::Answer {
    reply.answer.as_ref().unwrap()
}

fn kind(reply: &proto::ClaimReply) -> AnswerKind {
    answer(reply).kind()
}

fn number(reply: &proto::ClaimReply) -> u64 {
    answer(reply).r#ref
}

/// Asks by a call of its own, or on a stream.
enum Way {
    Calls(HapaxClient<tonic::transport::Channel>),
    Stream(Claims),
}

impl Way {
    /// The answer, or the code of the refusal, wherever it is.
    async fn claim(
        &mut self,
        queue: &str,
        request: ClaimRequest,
    ) -> Result<proto::ClaimReply, String> {
        let reply = match self {
            Self::Calls(client) => {
                let request = ClaimRequest { queue: queue.to_owned(), ..request };
                let reply = in_time(client.claim(request)).await;
                reply.map_err(|status| code(&status).to_owned())?.into_inner()
            }
            Self::Stream(claims) => claims.one(queue, request).await,
        };
        match refusal(answer(&reply)) {
            "" => Ok(reply),
            code => Err(code.to_owned()),
        }
    }

    async fn settle(&mut self, queue: &str, item: proto::Settle) -> proto::SettleAnswer {
        match self {
            Self::Calls(client) => {
                let request = proto::SettleRequest { queue: queue.to_owned(), items: vec![item] };
                client.settle(request).await.unwrap().into_inner().answers.remove(0)
            }
            Self::Stream(claims) => {
                claims.settle(queue, vec![item]).await;
                claims.settled(1).await.remove(0)
            }
        }
    }
}

/// What every claim gets and every settle of it, whichever way it comes.
async fn check(broker: &Broker, mut way: Way) {
    let way = &mut way;
    let fresh = way.claim("charges", claim(3, "k")).await.unwrap();
    assert_eq!((kind(&fresh), number(&fresh)), (AnswerKind::Fresh, 3));
    assert_eq!(answer(&fresh).state(), State::Leased);
    assert!(fresh.fence > 0 && fresh.deadline_ms > 0 && fresh.lease_ms == 7_000, "{fresh:?}");
    assert_eq!(fresh.tenant, "default");
    let again = way.claim("charges", claim(3, "k")).await.unwrap();
    assert_eq!((kind(&again), again.fence), (AnswerKind::Fresh, fresh.fence), "the same lease");
    let other = way.claim("charges", claim(4, "k")).await.unwrap();
    assert_eq!((kind(&other), &answer(&other).id), (AnswerKind::InFlight, &answer(&fresh).id));
    let conflict = ClaimRequest { body: "18 euro".into(), ..claim(5, "k") };

    let long = ClaimRequest { worker: "w".repeat(65), ..claim(6, "l") };
    let ages = ClaimRequest { lease_ms: Some(u64::MAX), ..claim(7, "m") };
    let old = ClaimRequest { issued_at_ms: Some(1_700_000_000_000), ..claim(8, "n") };
    let named = ClaimRequest { fingerprint: Some("x".repeat(256)), ..claim(9, "o") };
    for (queue, request, expected) in [
        ("charges", conflict, "conflict"),
        ("charges", claim(6, ""), "malformed_key"),
        ("charges", claim(6, "tab\t"), "malformed_key"),
        ("charges", long, "invalid"),
        ("charges", ages, "invalid"),
        ("charges", old, "too_old"),
        ("charges", named, "invalid"),
        ("absent", claim(6, "k"), "no_such_queue"),
        ("not a name", claim(6, "k"), "invalid"),
        ("", claim(6, "k"), "invalid"),
    ] {
        let refused = way.claim(queue, request).await.unwrap_err();
        assert_eq!(refused, expected, "in {queue}");
    }

    let begun = way.settle("charges", settle(1, &fresh.lease, Verb::Begin(proto::Begin {}))).await;
    assert_eq!((begun.kind(), begun.r#ref), (SettleKind::Ok, 1));
    let save = proto::Save { name: "n".to_owned(), body: "data".into() };
    let saved = way.settle("charges", settle(2, &fresh.lease, Verb::Save(save))).await;
    assert_eq!(saved.kind(), SettleKind::Ok);
    let released = settle(3, &fresh.lease, Verb::Release(proto::Release {}));
    assert_eq!(way.settle("charges", released).await.kind(), SettleKind::Ok);
    let next = way.claim("charges", claim(10, "k")).await.unwrap();
    assert!(
        next.fence > fresh.fence && next.recovery_points.get("n").is_some_and(|it| it == "data"),
        "{next:?}"
    );
    let late = way.settle("charges", done(4, &fresh.lease, "late")).await;
    assert_eq!(late.kind(), SettleKind::LeaseLost, "it was released");
    for _ in 0..2 {
        let charged = way.settle("charges", done(5, &next.lease, "charged")).await;
        assert_eq!((charged.kind(), charged.state()), (SettleKind::Ok, State::Done));
    }
    let replay = way.claim("charges", claim(11, "k")).await.unwrap();
    assert_eq!(kind(&replay), AnswerKind::Done);
    let outcome = answer(&replay).outcome.clone().unwrap();
    assert_eq!(outcome.result.unwrap().body, "charged");
    let nothing = proto::Settle { r#ref: 12, lease: next.lease.clone(), verb: None };
    let refused = way.settle("charges", nothing).await;
    assert_eq!((refused.r#ref, &*refused.problem.unwrap().code), (12, "invalid"));
    let foreign = way.settle("charges", done(13, &"no lease".into(), "x")).await;
    assert_eq!(foreign.kind(), SettleKind::LeaseLost);
    assert_eq!(broker.stats("charges").await.leased, 0);
}

#[tokio::test]
async fn a_claim_and_its_settles_get_the_same_by_a_call_and_on_a_stream() {
    let broker = Broker::with_queue("charges", r#"{"lease_ms":7000}"#).await;
    check(&broker, Way::Calls(broker.client.clone())).await;
    let broker = Broker::with_queue("charges", r#"{"lease_ms":7000}"#).await;
    check(&broker, Way::Stream(Claims::open(&broker).await)).await;
}

#[tokio::test]
async fn a_claim_says_whether_its_queue_parks() {
    for (rules, parks) in [(r#"{"on_lost":"park"}"#, true), ("{}", false)] {
        let broker = Broker::with_queue("charges", rules).await;
        let mut claims = Claims::open(&broker).await;
        // The first time, and again under the same id.
        for _ in 0..2 {
            let reply = claims.one("charges", claim(1, "k")).await;
            assert_eq!((kind(&reply), reply.parks), (AnswerKind::Fresh, Some(parks)));
        }
        let other = claims.one("charges", claim(2, "k")).await;
        assert_eq!((kind(&other), other.parks), (AnswerKind::InFlight, None));
    }
}

#[tokio::test]
async fn every_claim_of_thousands_is_answered_once_by_its_reference() {
    const COUNT: u64 = 5_000;
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    for first in (0..COUNT).step_by(100) {
        let some = (first..first + 100).map(|n| claim(n, &format!("k{n}"))).collect();
        claims.claim("charges", some).await;
    }
    let claimed = claims.claimed(COUNT as usize).await;
    assert!(claimed.iter().zip(0..).all(|(reply, n)| number(reply) == n));
    assert!(claimed.iter().all(|reply| kind(reply) == AnswerKind::Fresh));
    let leases: HashSet<_> = claimed.iter().map(|reply| reply.lease.clone()).collect();
    assert_eq!(leases.len(), COUNT as usize);
    for some in claimed.chunks(500) {
        let some = some.iter().map(|reply| done(number(reply), &reply.lease, "ok")).collect();
        claims.settle("charges", some).await;
    }
    let settled = claims.settled(COUNT as usize).await;
    assert!(settled.iter().zip(0..).all(|(answer, n)| answer.r#ref == n));
    assert!(settled.iter().all(|answer| answer.kind() == SettleKind::Ok));
    assert_eq!(broker.stats("charges").await.done_total, COUNT);
}

#[tokio::test]
async fn a_claim_that_waits_holds_up_no_other_and_gets_the_end_of_the_first() {
    let broker = Broker::with_queue("charges", "{}").await;
    broker.put("refunds", "{}").await.unwrap();
    let mut claims = Claims::open(&broker).await;
    let held = claims.one("charges", claim(1, "k")).await;
    let lost = claims.one("charges", claim(2, "freed")).await;
    claims.claim("charges", vec![waiting(3, "k"), waiting(4, "freed"), claim(5, "other")]).await;
    assert_eq!(number(&claims.claimed(1).await[0]), 5, "the others wait");
    for n in 6..20 {
        assert_eq!(
            kind(&claims.one("refunds", claim(n, &format!("k{n}"))).await),
            AnswerKind::Fresh
        );
    }
    let release = settle(1, &lost.lease, Verb::Release(proto::Release {}));
    claims.settle("charges", vec![done(0, &held.lease, "charged"), release]).await;
    let waited = claims.claimed(2).await;
    assert_eq!((number(&waited[0]), kind(&waited[0])), (3, AnswerKind::Done));
    let outcome = answer(&waited[0]).outcome.clone().unwrap();
    assert_eq!(outcome.result.unwrap().body, "charged");
    assert_eq!((number(&waited[1]), kind(&waited[1])), (4, AnswerKind::Fresh));
    assert_eq!(claims.settled(2).await.len(), 2);
}

#[tokio::test]
async fn a_claim_whose_time_is_over_is_in_flight() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    claims.one("charges", claim(1, "k")).await;
    let short = ClaimRequest { wait_ms: 50, ..claim(2, "k") };
    assert_eq!(kind(&claims.one("charges", short).await), AnswerKind::InFlight);
}

#[tokio::test]
async fn a_claim_that_nobody_waits_for_any_more_is_answered_and_takes_nothing() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    let held = claims.one("charges", claim(1, "k")).await;
    // Left while it waits, and left before it was decided.
    claims.claim("charges", vec![waiting(2, "k"), claim(3, "other")]).await;
    assert_eq!(number(&claims.claimed(1).await[0]), 3);
    claims.leave(vec![2, 77]).await;
    let left = claims.claimed(1).await.remove(0);
    assert_eq!((number(&left), kind(&left)), (2, AnswerKind::InFlight));
    let queue = "charges".to_owned();
    let both = proto::ClaimsFrame { queue, claims: vec![waiting(4, "k")], ..Default::default() };
    claims.say(both).await;
    claims.leave(vec![4]).await;
    let left = claims.claimed(1).await.remove(0);
    assert_eq!((number(&left), kind(&left)), (4, AnswerKind::InFlight));
    let release = settle(1, &held.lease, Verb::Release(proto::Release {}));
    claims.settle("charges", vec![release]).await;
    claims.settled(1).await;
    assert_eq!(broker.stats("charges").await.leased, 1, "the other key alone");
    assert_eq!(kind(&claims.one("charges", claim(5, "k")).await), AnswerKind::Fresh);
}

#[tokio::test]
async fn the_wait_of_a_claim_ends_with_its_stream() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    // The broker may hear of the end only after the release: then it is tried with another key.
    let ended = async {
        for round in 0.. {
            let key = format!("k{round}");
            let held = claims.one("charges", claim(1, &key)).await;
            let mut gone = Claims::open(&broker).await;
            gone.claim("charges", vec![waiting(2, &key), claim(3, &format!("other{round}"))]).await;
            assert_eq!(number(&gone.claimed(1).await[0]), 3);
            drop(gone);
            for _ in 0..=round {
                claims.one("charges", claim(4, &key)).await;
            }
            let release = settle(1, &held.lease, Verb::Release(proto::Release {}));
            claims.settle("charges", vec![release]).await;
            claims.settled(1).await;
            if kind(&claims.one("charges", claim(5, &key)).await) == AnswerKind::Fresh {
                return;
            }
        }
    };
    in_time(ended).await;
}

#[tokio::test]
async fn a_claim_names_the_queue_of_its_frame_or_none() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    let named = |queue: &str| ClaimRequest { queue: queue.to_owned(), ..claim(1, "k") };
    let refused = claims.one("charges", named("refunds")).await;
    assert_eq!(refusal(answer(&refused)), "invalid");
    assert_eq!(kind(&claims.one("charges", named("charges")).await), AnswerKind::Fresh);
}

#[tokio::test]
async fn frames_of_several_queues_that_come_together_are_each_for_their_own() {
    let broker = Broker::with_queue("charges", "{}").await;
    broker.put("refunds", "{}").await.unwrap();
    let mut claims = Claims::open(&broker).await;
    for n in 0..200 {
        let queue = if n % 2 == 0 { "charges" } else { "refunds" };
        claims.claim(queue, vec![claim(n, &format!("k{n}"))]).await;
    }
    let claimed = claims.claimed(200).await;
    assert!(claimed.iter().all(|reply| kind(reply) == AnswerKind::Fresh));
    // A lease is that of its queue, too.
    for (n, reply) in (0..).zip(&claimed) {
        let queue = if n % 2 == 0 { "charges" } else { "refunds" };
        claims.settle(queue, vec![done(n, &reply.lease, "done")]).await;
    }
    let settled = claims.settled(200).await;
    assert!(settled.iter().all(|answer| answer.kind() == SettleKind::Ok));
    for queue in ["charges", "refunds"] {
        assert_eq!(broker.stats(queue).await.done_total, 100);
    }
}

#[tokio::test]
async fn a_frame_that_cannot_be_read_ends_its_stream() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut grpc = tonic::client::Grpc::new(crate::broker::channel(&broker.url()));
    grpc.ready().await.unwrap();
    // A message of another stream: its first field is no text.
    let other = proto::WorkFrame {
        open: Some(proto::WorkOpen::default()),
        credit: 7,
        ..Default::default()
    };
    let path = http::uri::PathAndQuery::from_static("/hapax.v1.Hapax/Claims");
    let codec = tonic_prost::ProstCodec::<proto::WorkFrame, proto::ClaimsReply>::default();
    let frames = tokio_stream::iter([other]);
    let down = grpc.streaming(tonic::Request::new(frames), path, codec).await;
    let status = match down {
        Ok(down) => in_time(down.into_inner().message()).await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!(code(&status), "invalid");
}

#[tokio::test]
async fn each_claim_of_a_frame_is_judged_by_the_rate_alone() {
    let broker = Broker::with_queue("charges", r#"{"sends_per_s":1}"#).await;
    let mut claims = Claims::open(&broker).await;
    let some = (0..50).map(|n| claim(n, &format!("k{n}"))).collect();
    claims.claim("charges", some).await;
    let claimed = claims.claimed(50).await;
    let refused: Vec<_> = claimed.iter().filter_map(|it| answer(it).problem.as_ref()).collect();
    assert!(!refused.is_empty() && refused.len() < 50, "{}", refused.len());
    assert!(refused.iter().all(|problem| problem.code == "rate_limited" && problem.retryable));
}

#[tokio::test]
async fn claims_of_known_keys_take_nothing_from_the_rate_of_their_tenant() {
    let broker = Broker::with(|options| {
        let limits = Limits { sends_per_s: Some(3), ..Limits::default() };
        options.tenants.insert("default".to_owned(), limits);
    })
    .await;
    broker.put("charges", "{}").await.unwrap();
    let mut claims = Claims::open(&broker).await;
    assert_eq!(kind(&claims.one("charges", claim(0, "k")).await), AnswerKind::Fresh);
    claims.claim("charges", (1..=50).map(|n| claim(n, "k")).collect()).await;
    let known = claims.claimed(50).await;
    assert!(known.iter().all(|reply| kind(reply) == AnswerKind::InFlight), "judged by themselves");
    for n in 51..=52 {
        let fresh = claims.one("charges", claim(n, &format!("k{n}"))).await;
        assert_eq!(kind(&fresh), AnswerKind::Fresh, "{fresh:?}");
    }
    claims.claim("charges", (100..200).map(|n| claim(n, &format!("k{n}"))).collect()).await;
    let new = claims.claimed(100).await;
    let refused = new.iter().filter_map(|it| answer(it).problem.as_ref());
    assert!(refused.filter(|problem| problem.code == "rate_limited").count() > 0, "it is kept");
}

#[tokio::test]
async fn results_that_wait_on_a_stream_are_bounded() {
    const COUNT: u64 = 24;
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    let held = claims.one("charges", claim(1, "k")).await;
    claims.settle("charges", vec![done(1, &held.lease, "r".repeat(1_000_000).leak())]).await;
    claims.settled(1).await;
    claims.claim("charges", (0..COUNT).map(|n| claim(n, "k")).collect()).await;
    let claimed = claims.claimed(COUNT as usize).await;
    let done = claimed.iter().filter(|reply| kind(reply) == AnswerKind::Done).count();
    assert!((1..=4).contains(&done), "{done} results of 1 MB were in memory");
    let refused = claimed.iter().filter_map(|it| answer(it).problem.as_ref());
    assert!(refused.clone().all(|it| it.code == "unavailable" && it.retryable));
    assert_eq!(refused.count() + done, COUNT as usize);
    for n in 0..8 {
        assert_eq!(kind(&claims.one("charges", claim(n, "k")).await), AnswerKind::Done);
    }
}

#[tokio::test]
async fn the_end_of_a_key_wakes_one_of_those_who_wait_for_it() {
    const COUNT: u64 = 200;
    const ENDS: u64 = 50;
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    let mut held = claims.one("charges", claim(0, "k")).await.lease;
    claims.claim("charges", (1..=COUNT).map(|n| waiting(n, "k")).collect()).await;
    assert_eq!(kind(&claims.one("charges", claim(1_000, "other")).await), AnswerKind::Fresh);
    for n in 0..ENDS {
        claims.settle("charges", vec![settle(n, &held, Verb::Release(proto::Release {}))]).await;
        claims.settled(1).await;
        let next = claims.claimed(1).await.remove(0);
        assert_eq!((number(&next), kind(&next)), (n + 1, AnswerKind::Fresh), "in order");
        held = next.lease;
    }
    let duplicates = broker.key("charges", "k").await.duplicates;
    assert!(duplicates <= COUNT + ENDS, "{duplicates} claims in vain");
    claims.settle("charges", vec![done(0, &held, "charged")]).await;
    let rest = claims.claimed((COUNT - ENDS) as usize).await;
    assert!(rest.iter().all(|reply| kind(reply) == AnswerKind::Done), "an end is for all");
}

#[tokio::test]
async fn large_results_of_claims_that_wait_all_come_on_their_stream() {
    const COUNT: u64 = 24;
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    let held = claims.one("charges", claim(0, "k")).await;
    claims.claim("charges", (1..=COUNT).map(|n| waiting(n, "k")).collect()).await;
    claims.settle("charges", vec![done(1, &held.lease, "r".repeat(1_000_000).leak())]).await;
    let waited = claims.claimed(COUNT as usize).await;
    for reply in &waited {
        let result = answer(reply).outcome.as_ref().and_then(|it| it.result.as_ref());
        assert_eq!(result.map(|it| it.body.len()), Some(1_000_000), "{:?}", answer(reply).problem);
    }
}

#[tokio::test]
async fn claims_that_wait_take_memory_and_leave_some_for_what_they_wait_for() {
    const COUNT: usize = 1_000;
    let broker = Broker::with(|options| options.request_bytes = 4 << 20).await;
    broker.put("charges", "{}").await.unwrap();
    let mut claims = Claims::open(&broker).await;
    let held = claims.one("charges", claim(0, "k")).await;
    claims.claim("charges", (1..=COUNT as u64).map(|n| waiting(n, "k")).collect()).await;
    claims.settle("charges", vec![done(0, &held.lease, "charged")]).await;
    let all = claims.claimed(COUNT).await;
    let done = all.iter().filter(|reply| kind(reply) == AnswerKind::Done).count();
    assert!((200..400).contains(&done), "a third of 4 MiB is enough for some 340: {done}");
    let refused = all.iter().filter_map(|reply| answer(reply).problem.as_ref());
    assert!(refused.clone().all(|it| it.code == "unavailable" && it.retryable));
    assert_eq!(refused.count() + done, COUNT);
}

#[tokio::test]
async fn a_caller_that_does_not_read_is_not_read_from_and_harms_nobody() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut other = Claims::open(&broker).await;
    let mut narrow = Claims::open_narrow(&broker).await;
    let mut sent = 0;
    loop {
        let some = (sent..sent + 500).map(|n| claim(n, &format!("k{n}"))).collect();
        let frame =
            proto::ClaimsFrame { queue: "charges".to_owned(), claims: some, ..Default::default() };
        let saying = tokio::time::timeout(Duration::from_secs(2), narrow.up.send(frame)).await;
        if saying.is_err() {
            break;
        }
        sent += 500;
        assert!(sent < 1_000_000, "it is read without an end");
        assert_eq!(
            kind(&other.one("charges", claim(sent, &format!("o{sent}"))).await),
            AnswerKind::Fresh
        );
    }
    let claimed = narrow.claimed(sent as usize).await;
    assert!(claimed.iter().zip(0..).all(|(reply, n)| number(reply) == n));
    assert!(claimed.iter().all(|reply| kind(reply) == AnswerKind::Fresh));
}

#[tokio::test]
async fn a_broker_that_stops_ends_the_stream_and_its_waits() {
    let broker = Broker::with_queue("charges", "{}").await;
    let mut claims = Claims::open(&broker).await;
    claims.one("charges", claim(1, "k")).await;
    claims.claim("charges", vec![waiting(2, "k"), claim(3, "other")]).await;
    assert_eq!(number(&claims.claimed(1).await[0]), 3);
    let stopped = broker.stop();
    let status = claims.take().await.unwrap_err();
    assert_eq!(code(&status), "unavailable");
    // At the end of its wait it would be answered.
    assert!(claims.claimed.is_empty(), "who waits asks again elsewhere");
    in_time(stopped).await;
}
