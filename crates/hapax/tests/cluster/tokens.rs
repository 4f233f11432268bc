//! Tokens in the database: made once, known to all nodes.

use std::path::Path;

use hapax_testing::http::Request;
use hapax_testing::{BrokerProcess, Setup, printed, until};

use crate::{Cluster, hapax, names, serves};

fn token(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = hapax(&["token"]);
    let output = command.args(arguments).env("HAPAX_STORE", &cluster.url).output().unwrap();
    let out = String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned();
    (output.status.code(), out, printed(&output))
}

#[track_caller]
fn create(cluster: &Cluster, name: &str) -> String {
    let (code, token, printed) =
        self::token(cluster, &["create", "--can", "send,work,admin", "--name", name]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("postgres://127.0.0.1"), "{printed}");
    token
}

fn create_in(directory: &Path) -> String {
    let mut command = hapax(&["token", "create", "--can", "send,work,admin", "--data"]);
    let output = command.arg(directory).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn with_tokens(cluster: &Cluster, name: &str) -> Setup {
    cluster.setup(name).arguments(&["--auth", "tokens", "--node-name", name])
}

fn status(node: &BrokerProcess, token: &str) -> u16 {
    let mut door = node.connection().token(token);
    door.try_ask(&Request::get("/v1/queues")).map_or(0, |answer| answer.status)
}

#[test]
fn a_token_is_known_to_every_node_until_it_is_removed() {
    let Some(cluster) = Cluster::start() else { return };
    let first = with_tokens(&cluster, "a").start();
    serves(&first);
    let second = with_tokens(&cluster, "b").start();
    names(&second, &first);
    let one = create(&cluster, "one");
    let other = create(&cluster, "other");
    until("the first node to know both", || {
        [&one, &other].iter().all(|it| status(&first, it) == 200)
    });
    let hashes = "SELECT encode(bytes, 'escape') FROM hapax.document WHERE name = 'tokens'";
    let stored = cluster.server.sql("queues", hashes);
    let (_, secret) = one.rsplit_once('_').unwrap();
    assert!(stored.contains("other") && !stored.contains(secret), "only hashes: {stored}");
    let (code, listed, _) = token(&cluster, &["ls", "-o", "json"]);
    assert_eq!(code, Some(0));
    assert!(listed.contains("\"one\"") && listed.contains("\"other\""), "{listed}");

    assert_eq!(token(&cluster, &["rm", "one"]).0, Some(0));
    assert_eq!(token(&cluster, &["rm", "one"]).0, Some(3), "it is gone");
    assert_eq!(token(&cluster, &["create", "--can", "send", "--name", "other"]).0, Some(4));
    until("the first node to refuse it", || status(&first, &one) == 401);
    assert_eq!(status(&first, &other), 200);
    // The other node followed, although it did not serve.
    first.stop();
    serves(&second);
    assert_eq!((status(&second, &one), status(&second, &other)), (401, 200));
    let late = create(&cluster, "late");
    until("the second node to know it", || status(&second, &late) == 200);
    assert_eq!(token(&cluster, &["rm", "other"]).0, Some(0));
    until("the second node to refuse it", || status(&second, &other) == 401);
    second.stop();
}

#[test]
fn two_writers_at_once_lose_no_token() {
    const EACH: usize = 5;
    let Some(cluster) = Cluster::start() else { return };
    let node = with_tokens(&cluster, "a").start();
    serves(&node);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let cluster = &cluster;
            scope.spawn(move || {
                (0..EACH).for_each(|number| drop(create(cluster, &format!("{writer}-{number}"))));
            });
        }
    });
    let (_, listed, _) = token(&cluster, &["ls", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3 * EACH);
    node.stop();
}

/// Tokens that were made before the broker had a database are taken once; later ones are not, so
/// that a file with a removed token does not bring it back.
#[test]
fn the_token_file_of_a_node_is_taken_once() {
    let Some(cluster) = Cluster::start() else { return };
    let setup = with_tokens(&cluster, "a");
    let early = create_in(&setup.data);
    let first = setup.start();
    serves(&first);
    assert_eq!(status(&first, &early), 200);
    assert!(first.setup.log().contains("the tokens of this file are in the database now"));

    let setup = with_tokens(&cluster, "b");
    let stale = create_in(&setup.data);
    let second = setup.start();
    names(&second, &first);
    assert!(second.setup.log().contains("this file is not used"), "{}", second.setup.log());
    first.stop();
    serves(&second);
    assert_eq!((status(&second, &early), status(&second, &stale)), (200, 401));

    let mut command = hapax(&["token", "create", "--can", "send", "--data"]);
    let output = command.arg(&second.setup.data).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("tokens are in its database"), "{}", printed(&output));
    second.stop();
}
