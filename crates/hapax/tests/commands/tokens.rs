//! Who may do what, and what is never printed.

use crate::broker::{Broker, Printed, hapax};
use hapax_testing::until;

#[test]
fn a_token_opens_what_it_was_made_for_until_it_is_revoked() {
    let broker = Broker::start_in(tempfile::tempdir().unwrap(), &["--auth", "tokens"]);
    let error = broker.fails(5, &["queue", "ls"]);
    assert!(error.contains("HAPAX_TOKEN") && error.contains("hapax token create"), "{error}");
    let make = |arguments: &[&str]| {
        let told = Printed::of(
            &hapax(&broker.path())
                .args(["token", "create", "--data", "data"])
                .args(arguments)
                .output()
                .unwrap(),
        );
        assert_eq!(told.code, Some(0), "{told:?}");
        (told.out.trim().to_owned(), told.err)
    };
    let (admin, said) = make(&["--can", "send,work,admin", "--name", "boss"]);
    assert!(said.contains("boss") && !said.contains(&admin), "{said}");
    let (sender, _) = make(&["--can", "send", "--queue", "orders.*", "--expires", "1h"]);
    let run = |token: &str, arguments: &[&str]| {
        Printed::of(&broker.command(arguments).env("HAPAX_TOKEN", token).output().unwrap())
    };
    until("the broker to notice the token", || {
        (run(&admin, &["queue", "ls"]).code == Some(0)).then_some(())
    });
    assert_eq!(run(&admin, &["queue", "create", "orders.eu"]).code, Some(0));
    assert_eq!(run(&admin, &["queue", "create", "mail"]).code, Some(0));
    until("the broker to notice the second one", || {
        (run(&sender, &["send", "orders.eu", "x"]).code == Some(0)).then_some(())
    });
    assert_eq!(run(&sender, &["receive", "orders.eu"]).code, Some(5), "it may only send");
    assert_eq!(run(&sender, &["send", "mail", "x"]).code, Some(3), "as if it were not there");
    let nonsense = run("hapax_nonsense", &["queue", "ls"]);
    assert_eq!(nonsense.code, Some(5));
    assert!(!nonsense.err.contains("nonsense"), "a token is never printed: {nonsense:?}");
    let list = |format: &str| {
        let output =
            hapax(&broker.path()).args(["token", "ls", "--data", "data", "-o", format]).output();
        Printed::of(&output.unwrap()).out
    };
    for format in ["table", "json"] {
        let listed = list(format);
        assert!(listed.contains("boss") && listed.contains("orders.*"), "{listed}");
        assert!(!listed.contains(&admin) && !listed.contains(&sender), "no secret: {listed}");
    }
    let shape: serde_json::Value = serde_json::from_str(&list("json")).unwrap();
    assert_eq!(shape.as_array().unwrap().len(), 2);
    let remove = |name: &str| {
        let mut command = hapax(&broker.path());
        command.args(["token", "rm", name, "--data", "data"]).output().unwrap().status.code()
    };
    assert_eq!((remove("boss"), remove("boss")), (Some(0), Some(3)));
    until("the broker to notice that it is gone", || {
        (run(&admin, &["queue", "ls"]).code == Some(5)).then_some(())
    });
}

#[test]
fn a_token_is_made_where_the_broker_looks_and_the_place_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let create = |arguments: &[&str]| {
        let mut command = hapax(directory.path());
        Printed::of(
            &command.args(["token", "create", "--can", "send"]).args(arguments).output().unwrap(),
        )
    };
    let told = create(&[]);
    assert_eq!(told.code, Some(3), "no data is here, and none was named: {told:?}");
    assert!(told.err.contains("hapax-data") && told.err.contains("--data DIR"), "{told:?}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");

    std::fs::write(directory.path().join("hapax.toml"), "data = \"var/hapax\"\n").unwrap();
    let told = create(&[]);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.err.contains("var/hapax did not exist"), "{told:?}");
    assert!(told.err.contains("var/hapax/tokens.json"), "{told:?}");
    assert!(directory.path().join("var/hapax/tokens.json").exists(), "as the settings say");

    std::fs::create_dir(directory.path().join("mine")).unwrap();
    let told = create(&["--data", "mine"]);
    assert!(told.err.contains("mine/tokens.json") && !told.err.contains("did not exist"));
    let mut list = hapax(directory.path());
    let told = Printed::of(&list.args(["token", "ls", "--data", "none"]).output().unwrap());
    assert!(told.code == Some(3) && told.err.contains("no data directory none"), "{told:?}");
    assert!(!directory.path().join("none").exists(), "looking makes nothing");
}

#[test]
fn a_token_without_a_permission_or_with_a_wrong_one_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [&["token", "create"][..], &["token", "create", "--can", "everything"]] {
        let output = hapax(directory.path()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn what_is_logged_can_change_while_the_broker_runs() {
    let broker = Broker::start();
    assert!(broker.ok(&["log", "debug"]).contains("debug"));
    assert!(broker.fails(2, &["log", "luod"]).contains("luod"));
}
