//! The page transaction of a feed: records, progress, next item and completion in one commit.
//!
//! A partition's row says where it is (`next_offset`) and whether it is complete. A page names
//! the offset it begins at and is written only if the partition is there: a duplicate or
//! out-of-order message changes nothing. Because the move of `next_offset`, the page's records,
//! the counters, the next work item and the completion of this one are one transaction, no
//! crash can strand a partition, repeat a page's effect or count one twice.

use crate::json::Json;

/// One record of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The source's stable id.
    pub id: String,
    /// What the source said.
    pub payload: Json,
}

/// A page to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The run.
    pub run_id: String,
    /// The partition.
    pub partition_id: String,
    /// Where the page begins; the partition must be there.
    pub offset: u64,
    /// Where the partition is afterwards.
    pub next_offset: u64,
    /// Whether this was its last page.
    pub last: bool,
    /// The page's records.
    pub records: Vec<Record>,
}

/// A partition that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailPartition {
    /// The run.
    pub run_id: String,
    /// The partition.
    pub partition_id: String,
    /// Why.
    pub error: String,
}
