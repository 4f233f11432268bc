//! PostgreSQL as people run it: two servers that Patroni looks after, the second one a synchronous
//! standby, and etcd, which decides which of them is the primary.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use hapax_testing::http::{Connection, Request};
use hapax_testing::{as_user, children, free_address, newest_programs, spawn, until, within};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long the two may take until one is the primary and the other one its synchronous standby. A
/// host that is lost is missed after 20 s at the earliest.
const WHOLE_WITHIN: Duration = Duration::from_secs(300);

/// The programs that are needed, each with the Debian package that has it.
pub(crate) const PROGRAMS: [(&str, &str); 3] =
    [("etcd", "etcd-server"), ("patroni", "patroni python3-etcd"), ("psql", "postgresql-client")];

pub(crate) struct Patroni {
    directory: TempDir,
    etcd: Server,
    etcd_at: SocketAddr,
    pub(crate) hosts: [Host; 2],
}

/// A PostgreSQL and the Patroni beside it.
pub(crate) struct Host {
    pub(crate) name: &'static str,
    directory: PathBuf,
    patroni: Server,
    database: SocketAddr,
    door: SocketAddr,
}

/// A process that ends with this program.
#[derive(Default)]
struct Server(Option<(Pid, JoinHandle<()>)>);

impl Patroni {
    /// Starts everything, and waits until the standby is synchronous.
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        give_away(directory.path());
        let hosts = ["one", "two"].map(|name| Host {
            name,
            directory: directory.path().to_owned(),
            patroni: Server::default(),
            database: free_address(),
            door: free_address(),
        });
        let etcd_at = free_address();
        let mut patroni = Self { directory, etcd: Server::default(), etcd_at, hosts };
        patroni.start_etcd(free_address());
        for host in &mut patroni.hosts {
            host.configure(etcd_at);
            host.start();
        }
        patroni.is_whole();
        patroni
    }

    fn start_etcd(&mut self, peers: SocketAddr) {
        let (clients, peers) = (format!("http://{}", self.etcd_at), format!("http://{peers}"));
        let mut command = as_user(Path::new("etcd"));
        command.arg("--data-dir").arg(self.directory.path().join("etcd"));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}")]);
        self.etcd.start(command, &self.directory.path().join("etcd.log"));
    }

    /// The URL of a database, which exists from then on, with both hosts.
    pub(crate) fn database(&self, name: &str) -> String {
        let primary = self.primary().expect("there is one after the start");
        let mut psql = Command::new("psql");
        let port = self.hosts[primary].database.port().to_string();
        psql.args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-Xqc"]);
        let made = psql.arg(format!("CREATE DATABASE {name}")).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let [one, two] = self.hosts.each_ref().map(|host| host.database);
        format!("postgres://postgres@{one},{two}/{name}")
    }

    /// Which of the hosts is the primary, as Patroni has it.
    pub(crate) fn primary(&self) -> Option<usize> {
        self.hosts.iter().position(|host| host.answers("/primary"))
    }

    /// Waits until one is the primary and the other one its synchronous standby.
    #[track_caller]
    pub(crate) fn is_whole(&self) {
        within(WHOLE_WITHIN, "a primary with a synchronous standby", || {
            let [one, two] = &self.hosts;
            self.hosts.iter().for_each(Host::is_alive);
            let are = |primary: &Host, standby: &Host| {
                primary.answers("/primary") && standby.answers("/synchronous")
            };
            are(one, two) || are(two, one)
        });
    }

    /// Waits until this host is the primary.
    #[track_caller]
    pub(crate) fn leads(&self, host: usize) {
        within(WHOLE_WITHIN, "the other host to lead", || self.primary() == Some(host));
    }

    /// Exchanges the two, as an operator does.
    pub(crate) fn switch_over(&self, from: usize) {
        let host = &self.hosts[from];
        let request = Request::post("/switchover", &json!({ "leader": host.name }));
        let patient = Duration::from_secs(120);
        until("the switchover to be accepted", || {
            let asked = Connection::new(host.door).timeout(patient).try_ask(&request);
            asked.is_ok_and(|answer| answer.status == 200)
        });
    }

    pub(crate) fn stop_etcd(&self) {
        self.etcd.signal(Signal::STOP);
    }

    pub(crate) fn resume_etcd(&self) {
        self.etcd.signal(Signal::CONT);
    }
}

impl Host {
    fn configure(&self, etcd: SocketAddr) {
        let programs = newest_programs().expect("PostgreSQL is installed");
        // Patroni reads YAML, and JSON is YAML.
        let trust = "host all all 127.0.0.1/32 trust";
        let settings: Value = json!({
            "scope": "soak",
            "name": self.name,
            "restapi": { "listen": self.door, "connect_address": self.door },
            "etcd3": { "host": etcd },
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 2,
                    "retry_timeout": 3,
                    "synchronous_mode": true,
                    "postgresql": {
                        "use_pg_rewind": true,
                        "parameters": { "shared_buffers": "64MB", "max_connections": 60 },
                    },
                },
                "initdb": [{ "encoding": "UTF8" }, "no-locale", { "auth": "trust" }],
            },
            "postgresql": {
                "listen": self.database,
                "connect_address": self.database,
                "data_dir": self.data(),
                "bin_dir": programs,
                "pgpass": self.directory.join(format!("{}.pgpass", self.name)),
                "authentication": {
                    "superuser": { "username": "postgres" },
                    "replication": { "username": "postgres" },
                    "rewind": { "username": "postgres" },
                },
                "pg_hba": [
                    "local all all trust", trust, "host replication all 127.0.0.1/32 trust",
                ],
                "parameters": { "unix_socket_directories": self.directory },
            },
        });
        std::fs::write(self.settings(), settings.to_string()).unwrap();
    }

    /// Starts Patroni, which starts the database.
    pub(crate) fn start(&mut self) {
        let mut command = as_user(Path::new("patroni"));
        command.arg(self.settings()).current_dir("/");
        self.patroni.start(command, &self.log());
    }

    /// Ends Patroni and the database at once, as the loss of a machine does.
    pub(crate) fn kill(&mut self) {
        let database = self.processes();
        self.patroni.end(Signal::KILL);
        signal_all(&database, Signal::KILL);
    }

    /// Stops all of its processes (SIGSTOP), or lets them go on (SIGCONT).
    pub(crate) fn signal(&self, signal: Signal) {
        self.patroni.signal(signal);
        signal_all(&self.processes(), signal);
    }

    /// The processes of the database, the first one first.
    fn processes(&self) -> Vec<Pid> {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let first = file.lines().next().and_then(|line| Pid::from_raw(line.trim().parse().ok()?));
        first.into_iter().chain(first.map(children).unwrap_or_default()).collect()
    }

    /// Stops here if Patroni ended by itself.
    #[track_caller]
    fn is_alive(&self) {
        let has_ended = self.patroni.0.as_ref().is_some_and(|(_, ended)| ended.is_finished());
        let log = || std::fs::read_to_string(self.log()).unwrap_or_default();
        assert!(!has_ended, "Patroni ended:\n{}", log());
    }

    fn answers(&self, path: &str) -> bool {
        let mut door = Connection::new(self.door).timeout(Duration::from_secs(2));
        door.try_ask(&Request::get(path)).is_ok_and(|answer| answer.status == 200)
    }

    fn data(&self) -> PathBuf {
        self.directory.join(self.name)
    }

    fn log(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }

    fn settings(&self) -> PathBuf {
        self.directory.join(format!("{}.yml", self.name))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        self.kill();
    }
}

impl Server {
    fn start(&mut self, mut command: Command, log: &Path) {
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.0 = Some(spawn(command));
    }

    fn signal(&self, signal: Signal) {
        if let Some((process, _)) = &self.0 {
            let _ = kill_process(*process, signal);
        }
    }

    fn end(&mut self, signal: Signal) {
        self.signal(signal);
        if let Some((_, ended)) = self.0.take() {
            let _ = ended.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::KILL);
    }
}

fn signal_all(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill_process(*process, signal); // It may have ended meanwhile.
    }
}

/// PostgreSQL does not run as root, and has a user of its own.
fn give_away(directory: &Path) {
    if rustix::process::geteuid().is_root() {
        let given = Command::new("chown").arg("postgres").arg(directory).status().unwrap();
        assert!(given.success());
    }
}
