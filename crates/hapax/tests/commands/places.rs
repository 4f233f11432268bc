//! Directories, databases and nodes that are taken for each other.

use std::path::Path;

use crate::broker::{Printed, hapax};

const URL: &str = "postgres://hapax:s3cret@127.0.0.1:1/queues";
const STORE: [&str; 2] = ["--store", "postgres://hapax@127.0.0.1:1/queues"];

/// Refused as a wrong use, with what was printed.
#[track_caller]
fn refused(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = hapax(directory);
    let told =
        Printed::of(&command.args(arguments).envs(variables.iter().copied()).output().unwrap());
    assert_eq!(told.code, Some(2), "{arguments:?}: {told:?}");
    format!("{}{}", told.out, told.err)
}

#[test]
fn the_address_of_a_database_is_no_directory_and_is_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let given = |arguments: &[&str], variables: &[(&str, &str)]| {
        let told = refused(path, arguments, variables);
        assert!(!told.contains("s3cret"), "{arguments:?}: {told}");
        told
    };
    for command in
        [&["serve"][..], &["dev"], &["token", "ls"], &["token", "create", "--can", "send"]]
    {
        let told = given(&[command, &["--data", URL]].concat(), &[]);
        assert!(told.contains("--store") && told.contains("HAPAX_STORE"), "{told}");
        given(command, &[("HAPAX_DATA", URL)]);
    }
    given(&["serve", "--cache-dir", URL, STORE[0], STORE[1]], &[]);
    given(&["config", "show", "--data", URL], &[]);
    for arguments in [
        &["import", URL, STORE[0], STORE[1]][..],
        &["restore", URL, "copy"],
        &["restore", "copy", URL],
        &["backup", URL, "copy"],
        &["backup", "data", URL],
        &["check", URL],
        &["check", "host=127.0.0.1 user=hapax password=s3cret"],
        &["lint", URL],
    ] {
        given(arguments, &[]);
    }
    std::fs::write(path.join("hapax.toml"), format!("data = \"{URL}\"\n")).unwrap();
    for arguments in [&["serve"][..], &["lint", "hapax.toml"], &["token", "ls"]] {
        assert!(given(arguments, &[]).contains("--store"));
    }
    let left: Vec<_> = std::fs::read_dir(path).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["hapax.toml"], "nothing was made");
}

#[test]
fn what_only_a_node_has_needs_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let flags =
        [["--node-name", "a"], ["--cache-dir", "cache"], ["--advertise", "http://a.example:1"]];
    for flag in flags {
        let told = refused(path, &[&["serve"], &flag[..]].concat(), &[]);
        assert!(told.contains("--store"), "{told}");
    }
    let told = refused(path, &["dev"], &[("HAPAX_NODE_NAME", "a")]);
    assert!(told.contains("node_name") && told.contains("HAPAX_STORE"), "{told}");
    // A file that several machines share may leave the store, with its password, to a variable.
    std::fs::write(path.join("hapax.toml"), "node_name = \"a\"\n").unwrap();
    let told = refused(path, &["serve"], &[]);
    assert!(told.contains("hapax.toml:1") && told.contains("HAPAX_STORE"), "{told}");
    let linted = hapax(path).args(["lint", "hapax.toml"]).output().unwrap();
    assert!(linted.status.success(), "{linted:?}");
    for wrong in [["--advertise", "ftp://a"], ["--advertise", "http://"], ["--node-name", "a/b"]] {
        refused(path, &[&["serve"], &STORE[..], &wrong[..]].concat(), &[]);
    }
    assert!(!path.join("hapax-data").exists(), "nothing was made");
}

#[test]
fn the_directory_of_a_node_is_told_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir(path.join("node")).unwrap();
    std::fs::write(path.join("node/node"), "").unwrap();
    for arguments in [
        &["import", "node", STORE[0], STORE[1]][..],
        &["check", "node"],
        &["backup", "node", "copy"],
        &["restore", "node", "copy"],
    ] {
        let told = refused(path, arguments, &[]);
        assert!(told.contains("the directory of a node, whose data is in PostgreSQL"), "{told}");
        assert!(!told.contains("begin with nothing"), "{told}");
    }
}

#[test]
fn a_directory_that_was_imported_has_no_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::create_dir(path.join("old")).unwrap();
    std::fs::write(path.join("old/broker.json.imported"), "{}").unwrap();
    for command in [&["ls"][..], &["create", "--can", "send"], &["rm", "boss"]] {
        let told = refused(path, &[&["token"], command, &["--data", "old"]].concat(), &[]);
        assert!(told.contains("imported into a database") && told.contains("--store"), "{told}");
    }
}

#[test]
fn several_addresses_that_do_not_answer_are_no_reason_to_start_another_broker() {
    let directory = tempfile::tempdir().unwrap();
    let server = "http://127.0.0.1:1,http://127.0.0.1:2";
    let mut command = hapax(directory.path());
    let told = Printed::of(&command.args(["queue", "ls", "--server", server]).output().unwrap());
    assert_eq!(told.code, Some(6), "{told:?}");
    assert!(told.err.contains("serves right now") && told.err.contains("--retry 30s"), "{told:?}");
    assert!(!told.err.contains("hapax dev"), "{told:?}");
}

#[test]
fn a_missing_store_may_be_a_variable() {
    let directory = tempfile::tempdir().unwrap();
    assert!(refused(directory.path(), &["cluster", "status"], &[]).contains("HAPAX_STORE"));
}
