//! What `hapax sql --dialect mysql` prints, run as a program in another language would: by the
//! statements of the page, on a MariaDB of the tests' own, which reads what both of them read.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hapax_transactions::Dialect;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use hapax_testing::{PATIENCE, skip, spawn};

const DATABASE: &str = "shop";
/// Between two looks. The server shows the same list of transactions to who asks more often than
/// every 100 ms.
const LOOK: Duration = Duration::from_millis(150);
/// What the server answers to a second row under the same key.
const DUPLICATE: &str = "ERROR 1062";

struct Mysql {
    process: Pid,
    ended: Option<JoinHandle<()>>,
    directory: TempDir,
}

impl Mysql {
    /// `None` where MariaDB cannot be had, with a line that says so.
    fn start() -> Option<Self> {
        // Temporary tables too: a server that starts removes those of the others beside it.
        let directory = tempfile::tempdir().unwrap();
        let user = if rustix::process::geteuid().is_root() { &["--user=root"][..] } else { &[] };
        let data = format!("--datadir={}", directory.path().join("data").display());
        let made = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"])
            .arg(&data)
            .args(user)
            .env("TMPDIR", directory.path())
            .output();
        let made = match made {
            Ok(made) => made,
            Err(_) => {
                skip("MariaDB", "mariadb-server-core mariadb-client-core");
                return None;
            }
        };
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        // Where Debian has it, which is not in everybody's PATH.
        let debians = "/usr/sbin/mariadbd";
        let server = if Path::new(debians).is_file() { debians } else { "mariadbd" };
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", server, "--no-defaults"])
            .args(["--skip-networking", "--innodb-flush-log-at-trx-commit=0"])
            .arg(&data)
            .arg(format!("--socket={}", directory.path().join("socket").display()))
            .args(user)
            .env("TMPDIR", directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let (process, ended) = spawn(command);
        let mysql = Self { process, ended: Some(ended), directory };
        mysql.wait(|| {
            mysql.client("mysql").args(["-e", "SELECT 1"]).output().unwrap().status.success()
        });
        let made =
            mysql.client("mysql").arg("-e").arg(format!("CREATE DATABASE {DATABASE}")).status();
        assert!(made.unwrap().success());
        Some(mysql)
    }

    fn wait(&self, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            let log = || std::fs::read_to_string(self.directory.path().join("log"));
            let is_over = begun.elapsed() > PATIENCE
                || self.ended.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!is_over, "MariaDB does not get there:\n{}", log().unwrap_or_default());
            std::thread::park_timeout(LOOK);
        }
    }

    fn client(&self, database: &str) -> Command {
        let mut command = Command::new("mariadb");
        command
            .arg("--no-defaults")
            .arg(format!("--socket={}", self.directory.path().join("socket").display()))
            .args(["--user=root", "--batch", "--skip-column-names", "--unbuffered", database]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs SQL: what it prints, or the error.
    fn run(&self, sql: &str) -> Result<String, String> {
        let output = self.client(DATABASE).arg("-e").arg(sql).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    #[track_caller]
    fn sql(&self, sql: &str) -> String {
        self.run(sql).unwrap_or_else(|error| panic!("{sql}\n{error}"))
    }

    /// A session that is told what to do, and goes on where a statement fails.
    fn session(&self) -> Child {
        let mut command = self.client(DATABASE);
        command.arg("--force").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

impl Drop for Mysql {
    fn drop(&mut self) {
        let _ = kill_process(self.process, Signal::KILL);
        if let Some(ended) = self.ended.take() {
            let _ = ended.join();
        }
    }
}

/// The statements of a page: its comments that are indented.
fn statements(page: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    for line in page.lines() {
        match line.strip_prefix("--     ") {
            Some(sql) => statements.last_mut().unwrap().push_str(&format!("{sql}\n")),
            None if statements.last().unwrap().is_empty() => {}
            None => statements.push(String::new()),
        }
    }
    statements.retain(|statement| !statement.is_empty());
    statements
}

/// Puts values where a statement has its question marks.
#[track_caller]
fn filled(statement: &str, values: &[&str]) -> String {
    let mut parts = statement.split('?');
    let mut sql = parts.next().unwrap().to_owned();
    for value in values {
        sql.push_str(value);
        sql.push_str(parts.next().expect("a question mark for every value"));
    }
    assert_eq!(parts.next(), None, "a value for every question mark");
    sql
}

fn say(session: &mut Child, sql: &str) {
    session.stdin.as_mut().unwrap().write_all(format!("{sql};\n").as_bytes()).unwrap();
}

const NAME: [&str; 6] = ["'billing'", "'default'", "'orders'", "'order-42'", "''", "0"];

fn with(rest: &[&'static str]) -> Vec<&'static str> {
    NAME.iter().chain(rest).copied().collect()
}

#[test]
fn the_printed_inbox_for_mysql_keeps_its_rules() {
    let Some(mysql) = Mysql::start() else { return };
    let page = Dialect::Mysql.inbox_page();
    mysql.sql(&page);
    mysql.sql(&page);
    let [enter, found, finish, old, sweep] = &statements(&page)[..] else { panic!("{page}") };
    let found = filled(found, &NAME);

    mysql.sql(&filled(enter, &with(&["7"])));
    let again = mysql.run(&filled(enter, &with(&["8"]))).unwrap_err();
    assert!(again.contains(DUPLICATE), "{again}");
    assert_eq!(mysql.sql(&found), "7\tNULL\tNULL\n");
    let result = ["'17 euro'", "'text/plain'"];
    mysql.sql(&filled(finish, &[&result[..], &with(&["8"])].concat()));
    assert_eq!(mysql.sql(&found), "7\tNULL\tNULL\n", "another fence is another delivery");
    mysql.sql(&filled(finish, &[&result[..], &with(&["7"])].concat()));
    assert_eq!(mysql.sql(&found), "7\t17 euro\ttext/plain\n");
    let bare = ["'billing'", "'default'", "'orders'", "'bare'", "''", "0", "7"];
    mysql.sql(&filled(enter, &bare));
    let finish_bare = filled(finish, &[&["NULL", "NULL"][..], &bare].concat());
    let counted = mysql.sql(&format!("{finish_bare}; SELECT ROW_COUNT()"));
    assert_eq!(counted, "1\n", "a row without a result is counted too");
    mysql.sql("DELETE FROM hapax_inbox WHERE message_key = 'bare'");
    let counted = mysql.sql(&format!("{finish_bare}; SELECT ROW_COUNT()"));
    assert_eq!(counted, "0\n", "a transaction that is gone is noticed");

    for key in ["'Order-42'", "'order-42 '"] {
        mysql.sql(&filled(enter, &["'billing'", "'default'", "'orders'", key, "''", "0", "7"]));
    }
    let names = &NAME[..3];
    let keys = |page: &str| page.lines().filter_map(|line| line.split('\t').next()).count();
    let page = |most| filled(old, &[names, &["3600", most]].concat());
    assert_eq!(mysql.sql(&page("1000")), "", "nothing is an hour old");
    mysql.sql("UPDATE hapax_inbox SET entered_at = entered_at - INTERVAL 2 HOUR");
    assert_eq!((keys(&mysql.sql(&page("2"))), keys(&mysql.sql(&page("1000")))), (2, 3));
    mysql.sql(&filled(sweep, &with(&["8"])));
    assert_eq!(mysql.sql("SELECT count(*) FROM hapax_inbox"), "3\n", "another fence");
    mysql.sql(&filled(sweep, &with(&["7"])));
    assert_eq!(mysql.sql("SELECT count(*) FROM hapax_inbox"), "2\n");
}

#[test]
fn two_deliveries_at_once_meet_at_the_printed_inbox_for_mysql() {
    let Some(mysql) = Mysql::start() else { return };
    let page = Dialect::Mysql.inbox_page();
    mysql.sql(&page);
    let [enter, found, finish, ..] = &statements(&page)[..] else { panic!("{page}") };

    let mut first = mysql.session();
    say(&mut first, "START TRANSACTION");
    say(&mut first, &filled(enter, &with(&["7"])));
    let rows = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_rows_modified = 1";
    mysql.wait(|| mysql.sql(rows) == "1\n");
    let mut second = mysql.session();
    // Its view of the table is older than what the first commits.
    say(&mut second, "START TRANSACTION WITH CONSISTENT SNAPSHOT");
    say(&mut second, &filled(enter, &with(&["8"])));
    say(&mut second, &filled(found, &NAME));
    say(&mut second, "ROLLBACK");
    let waits = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    mysql.wait(|| mysql.sql(waits) == "1\n");
    say(&mut first, &filled(finish, &[&["'17 euro'", "NULL"][..], &with(&["7"])].concat()));
    say(&mut first, "COMMIT");

    assert!(first.wait_with_output().unwrap().status.success());
    let second = second.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&second.stderr);
    assert!(told.contains(DUPLICATE), "{told}");
    assert_eq!(String::from_utf8_lossy(&second.stdout), "7\t17 euro\tNULL\n");
}

#[test]
fn the_printed_outbox_for_mysql_can_be_read_by_a_relay() {
    let Some(mysql) = Mysql::start() else { return };
    let page = Dialect::Mysql.outbox_page();
    for migration in [&page, Dialect::Mysql.results(), &page, Dialect::Mysql.results()] {
        mysql.sql(migration);
    }
    let [send, unpark, read] = &statements(&page)[..] else { panic!("{page}") };
    let read = read.replace("SELECT *", "SELECT message_key");
    for (key, group) in [("'a'", "'g'"), ("'b'", "'g'"), ("'c'", "''")] {
        let entry = ["'orders'", key, group, "'three lemons'", "''", "'{}'"];
        mysql.sql(&filled(send, &[&entry[..], &["NULL"; 4]].concat()));
    }
    assert_eq!(mysql.sql(&read), "a\nb\nc\n");
    mysql
        .sql("UPDATE hapax_outbox SET retry_at = NOW(3) + INTERVAL 1 HOUR WHERE message_key = 'a'");
    assert_eq!(mysql.sql(&read), "c\n", "the group waits for its first row");
    mysql.sql("UPDATE hapax_outbox SET parked_at = NOW(3) WHERE message_key = 'a'");
    assert_eq!(mysql.sql(&read), "b\nc\n", "the group goes on without a parked row");
    mysql.sql(&filled(unpark, &["1"]));
    assert_eq!(mysql.sql(&read), "a\nb\nc\n");
}
