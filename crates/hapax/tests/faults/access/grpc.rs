//! The calls of the gRPC door, each asked by everybody.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use hapax_client::{Admin, Batch, Client, Code, Error, Message};
use hapax_wire::proto;

use super::{Gets, House, Kind, Needs, QUEUE, expected};
use hapax_testing::http::Request;

/// The file that names every call.
const PROTO: &str = include_str!("../../../../wire/proto/hapax/v1/hapax.proto");

type Asked<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// A call, and what it needs.
struct Call {
    name: &'static str,
    needs: Needs,
    ask: for<'a> fn(&'a Admin, &'a House) -> Asked<'a>,
}

macro_rules! calls {
    ($($name:literal $needs:ident |$admin:ident, $house:ident| $ask:expr;)+) => {
        const CALLS: &[Call] = &[$(Call {
            name: $name,
            needs: Needs::$needs,
            ask: |$admin, $house| {
                let _ = $house;
                Box::pin(async move { $ask.await.map(drop) })
            },
        },)+];
    };
}

fn key(name: &str) -> proto::KeyRequest {
    proto::KeyRequest { queue: QUEUE.to_owned(), key: name.to_owned(), group: String::new() }
}

fn redrive() -> proto::RedriveRequest {
    let select = Some(proto::redrive_request::Select::All(proto::RedriveAll {}));
    let (queue, id) = (QUEUE.to_owned(), "all".to_owned());
    proto::RedriveRequest { queue, id, select, ..Default::default() }
}

calls! {
    "Send" Send |admin, house| send(admin);
    "Work" Work |admin, house| work(admin);
    "SendBatch" Send |admin, house| admin.send_batch(QUEUE, vec![
        proto::Message { key: Some("b".to_owned()), ..Default::default() }
    ]);
    "Receive" Work |admin, house| admin.receive(proto::ReceiveRequest {
        queue: QUEUE.to_owned(), max: 1, ..Default::default()
    });
    "Settle" Work |admin, house| admin.settle(QUEUE, Vec::new());
    "Claim" Claim |admin, house| claim(admin);
    "GetKey" Look |admin, house| admin.key(key("done"), Duration::ZERO);
    "ForgetKey" Admin |admin, house| admin.forget_key(key("done"));
    "ReplayKey" Admin |admin, house| admin.replay_key(key("done"), Some(proto::Message {
        key: Some("done".to_owned()), body: "x".into(), ..Default::default()
    }));
    "DiscardKey" Admin |admin, house| admin.discard_key(key("dead"));
    "ResolveKey" Admin |admin, house| admin.resolve_key(
        key("dead"), proto::resolve_request::Resolution::Retry(proto::ResolveRetry {})
    );
    "Browse" Look |admin, house| admin.browse(QUEUE, proto::State::Dead, 10, "");
    "Redrive" Admin |admin, house| admin.redrive(redrive());
    "GetRedrive" Admin |admin, house| admin.redrive_progress(QUEUE, "r");
    "CancelRedrive" Admin |admin, house| admin.cancel_redrive(QUEUE, "r");
    "PutQueue" Create |admin, house| admin.put_queue(QUEUE, "{}", None);
    "GetQueue" Look |admin, house| admin.queue(QUEUE);
    "ListQueues" Token |admin, house| admin.queues();
    "DeleteQueue" Admin |admin, house| admin.delete_queue(QUEUE);
    "PauseQueue" Admin |admin, house| admin.pause_queue(QUEUE);
    "ResumeQueue" Admin |admin, house| admin.resume_queue(QUEUE);
    "PurgeQueue" Admin |admin, house| admin.purge_queue(QUEUE, false);
    "Backup" Operate |admin, house| backup(admin, house);
    "SetLog" Operate |admin, house| admin.set_log("debug");
}

async fn send(admin: &Admin) -> Result<(), Error> {
    let message = Message::new("x").key("streamed");
    admin.client().queue(QUEUE).send(message).await.map(drop)
}

/// A stream that is let in says nothing before there is something to say.
async fn work(admin: &Admin) -> Result<(), Error> {
    let mut work = admin.client().queue(QUEUE).work().open();
    work.credit(1);
    let mut batch = Batch::default();
    work.next(&mut batch).await
}

async fn claim(admin: &Admin) -> Result<(), Error> {
    admin.client().queue(QUEUE).claim("claimed").take().await.map(drop)
}

async fn backup(admin: &Admin, house: &House) -> Result<(), Error> {
    let target = house.setup.data.with_file_name(format!("backup-{:x}", fastrand::u64(..)));
    let mut backup = admin.backup(&target.display().to_string()).await?;
    while backup.progress().await?.is_some() {}
    let _ = std::fs::remove_dir_all(&target);
    Ok(())
}

/// Asks every cell; how many there are, and which of them are wrong.
pub(super) fn cells(house: &House) -> (usize, Vec<String>) {
    let listed: BTreeSet<&str> = CALLS.iter().map(|call| call.name).collect();
    let lines = PROTO.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
    let declared: BTreeSet<&str> = lines.filter_map(|line| line.split('(').next()).collect();
    assert_eq!(listed, declared, "every call is in the table");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut wrong = Vec::new();
    let mut cells = 0;
    for caller in &house.callers {
        for call in CALLS {
            let expected = expected(call.needs, caller.kind);
            if expected == Gets::Allowed {
                house.prepare();
            }
            let asked = runtime.block_on(async {
                let mut client =
                    Client::builder(&house.setup.url()).timeout(Duration::from_secs(60));
                if let Some(token) = &caller.token {
                    client = client.token(token);
                }
                (call.ask)(&Admin::new(client.connect().unwrap()), house).await
            });
            let gets = match asked.as_ref().map_err(Error::code) {
                Ok(()) => Some(Gets::Allowed),
                Err(Code::Unauthorized) => Some(Gets::Unknown),
                Err(Code::Forbidden) => Some(Gets::Forbidden),
                Err(Code::NoSuchQueue) => Some(Gets::Absent),
                // Only a parked message can be resolved: to be told so is to be let in.
                Err(Code::Invalid) if call.name == "ResolveKey" => Some(Gets::Allowed),
                Err(_) => None,
            };
            if gets != Some(expected) {
                let (name, who) = (call.name, caller.name);
                wrong.push(format!("{name} {who}: {asked:?}, not {expected:?}"));
            }
            cells += 1;
            if matches!(caller.kind, Kind::Stranger) {
                let _ = house.door(caller).ask(&Request::new("DELETE", "/v1/queues/orders"));
            }
        }
    }
    (cells, wrong)
}
