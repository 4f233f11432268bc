//! The calls of the gRPC door, each asked by everybody.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::time::Duration;

use hapax_client::{Admin, Batch, Client, Code, Error, Message};
use hapax_wire::proto;

use super::{Gets, Guarded, Kind, Needs, QUEUE, expected};
use hapax_testing::http::Request;

/// The file that names every call.
const PROTO: &str = include_str!("../../../../wire/proto/hapax/v1/hapax.proto");

type Asked<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// A call, and what it needs.
struct Call {
    name: &'static str,
    needs: Needs,
    ask: for<'a> fn(&'a Admin, &'a Guarded) -> Asked<'a>,
}

macro_rules! calls {
    ($($name:literal $needs:ident |$admin:ident, $guarded:ident| $ask:expr;)+) => {
        const CALLS: &[Call] = &[$(Call {
            name: $name,
            needs: Needs::$needs,
            ask: |$admin, $guarded| {
                let _ = $guarded;
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
    "Send" Send |admin, guarded| send(admin);
    "Work" Work |admin, guarded| work(admin);
    "SendBatch" Send |admin, guarded| admin.send_batch(QUEUE, vec![
        proto::Message { key: Some("b".to_owned()), ..Default::default() }
    ]);
    "Receive" Work |admin, guarded| admin.receive(proto::ReceiveRequest {
        queue: QUEUE.to_owned(), max: 1, ..Default::default()
    });
    "Settle" Work |admin, guarded| admin.settle(QUEUE, Vec::new());
    "Claim" Claim |admin, guarded| claim(admin, LARGE);
    "Claims" Claim |admin, guarded| claim(admin, 1);
    "GetKey" Look |admin, guarded| admin.key(key("done"), Duration::ZERO);
    "ForgetKey" Admin |admin, guarded| admin.forget_key(key("done"));
    "ReplayKey" Admin |admin, guarded| admin.replay_key(key("done"), Some(proto::Message {
        key: Some("done".to_owned()), body: "x".into(), ..Default::default()
    }));
    "DiscardKey" Admin |admin, guarded| admin.discard_key(key("dead"));
    "ResolveKey" Admin |admin, guarded| admin.resolve_key(
        key("dead"), proto::resolve_request::Resolution::Retry(proto::ResolveRetry {})
    );
    "Browse" Browse |admin, guarded| admin.browse(QUEUE, proto::State::Dead, 10, "");
    "Redrive" Admin |admin, guarded| admin.redrive(redrive());
    "GetRedrive" Admin |admin, guarded| admin.redrive_progress(QUEUE, "r");
    "CancelRedrive" Admin |admin, guarded| admin.cancel_redrive(QUEUE, "r");
    "PutQueue" Create |admin, guarded| admin.put_queue(QUEUE, "{}", None);
    "GetQueue" Look |admin, guarded| admin.queue(QUEUE);
    "ListQueues" Token |admin, guarded| admin.queues();
    "DeleteQueue" Admin |admin, guarded| admin.delete_queue(QUEUE);
    "PauseQueue" Admin |admin, guarded| admin.pause_queue(QUEUE);
    "ResumeQueue" Admin |admin, guarded| admin.resume_queue(QUEUE);
    "PurgeQueue" Admin |admin, guarded| admin.purge_queue(QUEUE, false);
    "Backup" Operate |admin, guarded| backup(admin, guarded);
    "SetLog" Operate |admin, guarded| admin.set_log("debug");
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

/// A claim of more than the client puts on its stream is a call.
const LARGE: usize = 100_000;

async fn claim(admin: &Admin, bytes: usize) -> Result<(), Error> {
    let body = vec![b'x'; bytes];
    admin.client().queue(QUEUE).claim(format!("{bytes}")).body(body).take().await.map(drop)
}

async fn backup(admin: &Admin, guarded: &Guarded) -> Result<(), Error> {
    let target = guarded.setup.data.with_file_name(format!("backup-{:x}", fastrand::u64(..)));
    let mut backup = admin.backup(&target.display().to_string()).await?;
    while backup.progress().await?.is_some() {}
    let _ = std::fs::remove_dir_all(&target);
    Ok(())
}

/// Asks every cell; how many there are, and which of them are wrong.
pub(super) fn cells(guarded: &Guarded) -> (usize, Vec<String>) {
    let listed: BTreeSet<&str> = CALLS.iter().map(|call| call.name).collect();
    let lines = PROTO.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
    let declared: BTreeSet<&str> = lines.filter_map(|line| line.split('(').next()).collect();
    assert_eq!(listed, declared, "every call is in the table");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut wrong = Vec::new();
    let mut cells = 0;
    for caller in &guarded.callers {
        for call in CALLS {
            let expected = expected(call.needs, caller.kind);
            if expected == Gets::Allowed {
                guarded.prepare();
            }
            let asked = runtime.block_on(async {
                let mut client =
                    Client::builder(&guarded.setup.url()).timeout(Duration::from_secs(60));
                if let Some(token) = &caller.token {
                    client = client.token(token);
                }
                (call.ask)(&Admin::new(client.connect().unwrap()), guarded).await
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
                let _ = guarded.door(caller).ask(&Request::new("DELETE", "/v1/queues/orders"));
            }
        }
    }
    (cells, wrong)
}
