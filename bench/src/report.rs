//! The table: median, spread, ratio to the limit of the same run, goal, met or not.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

/// What was measured, over all rounds.
struct Series {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
}

impl Series {
    fn median(&self) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    fn spread(&self) -> (f64, f64) {
        let least = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.values.iter().copied().fold(0.0, f64::max);
        (least, most)
    }
}

/// What a goal asks of a series.
pub(crate) enum Goal {
    /// At least this many times the limit.
    AtLeast {
        /// The goal's number in the list.
        mark: &'static str,
        /// The series it is compared with.
        limit: &'static str,
        /// How many times.
        times: f64,
    },
    /// At most this.
    AtMost {
        /// The goal's number in the list.
        mark: &'static str,
        /// The most it may be.
        most: f64,
    },
    /// How it compares with a limit; the goal itself is about peers.
    Ratio {
        /// The goal's number in the list.
        mark: &'static str,
        /// The series it is compared with.
        limit: &'static str,
    },
    /// A limit, or a description.
    None,
}

pub(crate) struct Report {
    rounds: usize,
    series: Vec<(Series, Goal)>,
}

impl Report {
    pub(crate) fn new(rounds: usize) -> Self {
        Self { rounds, series: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: &str, unit: &'static str, values: Vec<f64>, goal: Goal) {
        let series = Series { name: name.to_owned(), unit, values };
        self.series.push((series, goal));
    }

    fn median_of(&self, name: &str) -> f64 {
        let found = self.series.iter().find(|(series, _)| series.name == name);
        found.map_or(f64::NAN, |(series, _)| series.median())
    }

    /// The table in Markdown.
    pub(crate) fn table(&self) -> String {
        let mut out =
            String::from("| what | median | spread | goal | ratio | met |\n|---|---|---|---|---|---|\n");
        for (series, goal) in &self.series {
            let (least, most) = series.spread();
            let (asked, ratio, met) = match goal {
                Goal::None => (String::new(), String::new(), ""),
                Goal::AtMost { mark, most } => {
                    let met = series.median() <= *most;
                    (
                        format!("{mark}: ≤ {}", number(*most)),
                        String::new(),
                        if met { "yes" } else { "**no**" },
                    )
                }
                Goal::Ratio { mark, limit } => {
                    let ratio = series.median() / self.median_of(limit);
                    (format!("{mark}, beside {limit}"), format!("{ratio:.2}"), "")
                }
                Goal::AtLeast { mark, limit, times } => {
                    let ratio = series.median() / self.median_of(limit);
                    let met = if ratio >= *times { "yes" } else { "**no**" };
                    (format!("{mark}: ≥ {times} × {limit}"), format!("{ratio:.2}"), met)
                }
            };
            let _ = writeln!(
                out,
                "| {} | {} {} | {} – {} | {asked} | {ratio} | {met} |",
                series.name,
                number(series.median()),
                series.unit,
                number(least),
                number(most),
            );
        }
        out
    }

    /// Writes the table where a page has room for it, between two marks; else the page of benchmarks.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let page = std::fs::read_to_string(path).unwrap_or_default();
        let (begins, ends) = ("<!-- figures -->\n", "<!-- end of figures -->");
        if let (Some((before, _)), Some((_, after))) = (page.split_once(begins), page.split_once(ends)) {
            let text = format!("{before}{begins}\n{}\n{ends}{after}", self.table());
            std::fs::write(path, text)?;
            println!("wrote {}", path.display());
            return Ok(());
        }
        self.write_benchmarks(path)
    }

    fn write_benchmarks(&self, path: &Path) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let text = format!(
            "# Benchmarks\n\n\
             Made by `cargo xtask bench`; repeat it with the same command. Each figure is the median of \
             {} rounds in which the limit and solely took turns, on a machine with {cores} cores that client \
             and server share. The machine is noisy, so **a goal is a ratio between two medians of one run**; \
             an absolute figure only describes.\n\n\
             *Bare group commit* is a loop over one prepared `INSERT` on SQLite (WAL, `synchronous=FULL`), 64 rows a \
             transaction into a plain table: the same row as a job's, its id and its unique key, and nothing else; no \
             queue, no channel, no index to claim by, no fence. solely's \
             figures go through its library interface, one awaited call an operation, with every index, fence and \
             answer. *Row writes* are rows of tables; entries of indexes are not counted on either side.\n\n\
             *Bare PostgreSQL* is a loop over prepared statements of 32 rows on each of two connections, so that as many \
             rows are under way as solely has callers: inserts of the same row with its unique key; claims by SKIP LOCKED and \
             completions; updates of leases by key. The server has the settings it is installed with: every commit is \
             durable.\n\n\
             B12 is not a matter of time: `growth::a_million_rows_beside_it_change_nothing` counts what operations on \
             PostgreSQL read beside ten thousand rows and beside a million.\n\n{}",
            self.rounds,
            self.table()
        );
        std::fs::write(path, text)?;
        println!("wrote {}", path.display());
        Ok(())
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 {
        let whole = format!("{value:.0}");
        let mut out = String::new();
        for (place, digit) in whole.chars().enumerate() {
            if place > 0 && (whole.len() - place).is_multiple_of(3) {
                out.push(',');
            }
            out.push(digit);
        }
        out
    } else {
        format!("{value:.2}")
    }
}
